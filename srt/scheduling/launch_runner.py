"""LaunchRunner: steps on a device that runs them while the scheduler goes on, without a thread.

A step is launched before the host has seen what the step before it drew: those tokens stay on the
device. Only rows whose draw depends on them (penalties, grammars) need them here; then the forward
pass is launched first, and what is waited for is the step before it alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from ..execution.forward_batch import StepOutput
from ..execution.launching import LaunchedStep, LaunchingExecutor
from .batch_builder import StepInput
from .grammar_rows import GrammarRows, Outcome
from .step_runner import StepResult


class LaunchRunner:
    """A StepRunner. At most one step is in flight when the next is submitted."""

    def __init__(self, executor: LaunchingExecutor, clock: Callable[[], float]) -> None:
        self._executor = executor
        self._clock = clock
        self._grammar_rows = GrammarRows()
        self._previous: RunningStep | None = None
        self._idle_since = 0.0  # when the last step that was collected had ended

    def submit(self, step: StepInput) -> RunningStep:
        """Launch step; result() waits for it."""
        began = self._clock()
        sampled = [row.batch_row for row in step.sample_rows]
        relayed = [sampled[place] for place, _ in step.relayed]
        launched = self._executor.launch(step.batch, sampled, relayed)
        previous = self._previous
        if previous is not None and _depends_on(step, previous.step):
            rows = {row for _, row in step.relayed}
            corrected = {row: one for row, one in previous.settle().items() if row in rows}
            if corrected:  # a grammar put other tokens in place of those drawn: near its end only
                launched.run_forward_again(corrected)
            _complete(step, previous.tokens())
        if step.constrained:
            self._grammar_rows.mask(step.constrained, step.sample_rows)
        launched.sample(step.sample_rows, step.prompt_logprob_rows)
        self._previous = RunningStep(self, step, launched, began)
        return self._previous

    def collected(self, step: StepInput, output: StepOutput, began: float) -> StepResult:
        """What a step that is done means: its time, and what the grammars make of its tokens."""
        now = self._clock()
        seconds = now - max(began, self._idle_since)  # before that the device did another step
        self._idle_since = now
        outcomes: dict[int, Outcome] = {}
        if step.constrained:
            outcomes = self._grammar_rows.take(step.constrained, output.sampled)
        return StepResult(output, seconds, outcomes)


class RunningStep:
    """A launched step, whose results are fetched once."""

    def __init__(
        self, runner: LaunchRunner, step: StepInput, launched: LaunchedStep, began: float
    ) -> None:
        self.step = step
        self._runner = runner
        self._launched = launched
        self._began = began
        self._result: StepResult | None = None
        self._corrected: dict[int, int] = {}

    def result(self) -> StepResult:
        """Wait for what the step gave."""
        self.settle()
        assert self._result is not None
        return self._result

    def settle(self) -> Mapping[int, int]:
        """Wait for the step; return the tokens that a grammar replaced, by row of the table."""
        if self._result is None:
            output = self._launched.collect()
            drawn = [one.token_id for one in output.sampled]
            self._result = self._runner.collected(self.step, output, self._began)
            self._corrected = {
                row: token_id
                for (row, token_id), before in zip(self.tokens().items(), drawn, strict=True)
                if token_id != before
            }
        return self._corrected

    def tokens(self) -> dict[int, int]:
        """The token of each sampled row of the table; after settle()."""
        assert self._result is not None
        sampled = self._result.output.sampled
        rows = zip(self.step.sampled_table_rows, sampled, strict=True)
        return {row: one.token_id for row, one in rows}


def _depends_on(step: StepInput, previous: StepInput) -> bool:
    """Whether step's draws have to wait for the tokens that previous draws."""
    if step.constrained and previous.constrained:
        return True  # grammars take tokens in the order of the steps
    waiting = {row.place for row in step.constrained}
    return any(
        place in waiting or step.sample_rows[place].params.has_penalties
        for place, _ in step.relayed
    )


def _complete(step: StepInput, tokens: Mapping[int, int]) -> None:
    """Write the tokens drawn by the step before to where this step's rows keep their output."""
    for place, table_row in step.relayed:
        output_ids = step.sample_rows[place].output_ids
        assert isinstance(output_ids, np.ndarray)
        output_ids[-1] = tokens[table_row]
