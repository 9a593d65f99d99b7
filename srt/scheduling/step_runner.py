"""Runs launched steps: at once, or in a worker thread while the scheduler goes on.

With steps in a thread the token drawn by one step is the input of the next before the scheduler has
seen it. It goes from step to step here, by request row: a step writes the tokens it drew into the
relay, the next one reads them out into its batch. A place that is read twice or before it was
written is a defect, and found: reading poisons it.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from ..execution.forward_batch import Executor, StepOutput
from .batch_builder import StepInput
from .grammar_rows import GrammarRows, Outcome

_POISON = -1


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step gave, and how long it ran. outcomes: of constrained rows, by sample place."""

    output: StepOutput
    seconds: float
    outcomes: dict[int, Outcome] = field(default_factory=dict)


class PendingStep(Protocol):
    """A step that was submitted."""

    def result(self) -> StepResult:
        """Wait for what it gave."""
        ...


class StepRunner(Protocol):
    """Takes steps in order."""

    def submit(self, step: StepInput) -> PendingStep:
        """Begin step. Raises DeviceOutOfMemory where it has come to nothing."""
        ...


class InlineRunner:
    """Runs each step before submit returns."""

    def __init__(self, executor: Executor, clock: Callable[[], float]) -> None:
        self._executor = executor
        self._clock = clock
        self._grammar_rows = GrammarRows()

    def submit(self, step: StepInput) -> Future[StepResult]:
        began = self._clock()
        self._grammar_rows.mask(step.constrained, step.sample_rows)
        output = self._executor.execute(step.batch, step.sample_rows, step.prompt_logprob_rows)
        outcomes = self._grammar_rows.take(step.constrained, output.sampled)
        done: Future[StepResult] = Future()
        done.set_result(StepResult(output, self._clock() - began, outcomes))
        return done


class ThreadRunner:
    """Runs steps one after the other in a thread. num_rows is that of the request table."""

    def __init__(self, executor: Executor, num_rows: int, clock: Callable[[], float]) -> None:
        self._inline = InlineRunner(executor, clock)
        self._relay = np.full(num_rows, _POISON, dtype=np.int64)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="steps")

    def submit(self, step: StepInput) -> Future[StepResult]:
        return self._thread.submit(self._run, step)

    def _run(self, step: StepInput) -> StepResult:
        relay = self._relay
        for sample_place, table_row in step.relayed:
            token_id = relay[table_row]
            assert token_id != _POISON, f"no token was drawn for row {table_row}"
            relay[table_row] = _POISON
            sample_row = step.sample_rows[sample_place]
            last = step.batch.cu_query_lens[sample_row.batch_row + 1] - 1
            step.batch.input_ids[last] = token_id
            output_ids = sample_row.output_ids
            assert isinstance(output_ids, np.ndarray)
            output_ids[-1] = token_id
        result = self._inline.submit(step).result()
        for table_row, sampled in zip(step.sampled_table_rows, result.output.sampled, strict=True):
            relay[table_row] = sampled.token_id
        return result
