"""FakeExecutor as a device would run it: a step's work is done when its results are waited for.

Nothing of a step happens before all of the step before it has; its forward pass then runs at once,
with the token that the relay holds at that time, right or wrong. A step may find no memory; what it
was to write then holds anything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import msgspec
import numpy as np
import numpy.typing as npt
from support.fake_executor import FakeExecutor

from runtime.srt.errors import DeviceOutOfMemory
from runtime.srt.execution.forward_batch import (
    ForwardBatch,
    PromptLogprobRow,
    SampleRow,
    StepOutput,
)


class FakeLaunchingExecutor(FakeExecutor):
    """A LaunchingExecutor; num_in_flight: steps launched and not collected.

    is_memory_short is asked at each half of a step; num_failed: steps that ended by it.
    """

    def __init__(self, num_slots: int, vocab_size: int = 50) -> None:
        super().__init__(num_slots, vocab_size)
        self.last_tokens: dict[int, int] = {}
        self.queue: list[FakeLaunchedStep] = []
        self.num_in_flight = 0
        self.most_in_flight = 0
        self.num_forwards_again = 0
        self.is_memory_short: Callable[[], bool] = lambda: False
        self.num_failed = 0

    def execute(
        self,
        batch: ForwardBatch,
        sample_rows: list[SampleRow],
        prompt_logprob_rows: list[PromptLogprobRow],
    ) -> StepOutput:
        self.need_memory(batch)
        return super().execute(batch, sample_rows, prompt_logprob_rows)

    def need_memory(self, batch: ForwardBatch) -> None:
        """Raise, or not."""
        if self.is_memory_short():
            before = [one for one in self.queue if not one.has_run]
            if before:
                before[-1].spoils_after.append(batch.out_slots)
            else:
                self.tokens[batch.out_slots] = -1
            self.num_failed += 1
            raise DeviceOutOfMemory(f"no memory for {batch.num_tokens} tokens")

    def launch(
        self, batch: ForwardBatch, sampled: list[int], relayed: list[int]
    ) -> FakeLaunchedStep:
        self.need_memory(batch)
        step = FakeLaunchedStep(self, batch, sampled, relayed)
        self.queue.append(step)
        self.num_in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.num_in_flight)
        return step


class FakeLaunchedStep:
    """One step; its arrays are copied when it is launched, as an upload would."""

    def __init__(
        self,
        executor: FakeLaunchingExecutor,
        batch: ForwardBatch,
        sampled: list[int],
        relayed: list[int],
    ) -> None:
        self._executor = executor
        self._batch = replace(
            batch, input_ids=batch.input_ids.copy(), slot_table=batch.slot_table.copy()
        )
        self._sampled = sampled
        self._relayed = relayed
        self._contexts: list[list[int]] | None = None
        self._rows: list[SampleRow] | None = None
        self._scored: list[PromptLogprobRow] = []
        self._output: StepOutput | None = None
        self.spoils_after: list[npt.NDArray[np.int64]] = []  # slots of steps that failed behind it

    @property
    def has_run(self) -> bool:
        return self._contexts is not None

    def run_forward_again(self, corrected: Mapping[int, int]) -> None:
        assert self._contexts is not None, "the forward pass has not run yet"
        self._need_memory()
        self._executor.last_tokens.update(corrected)
        self._executor.num_forwards_again += 1
        self._forward()

    def sample(
        self, sample_rows: list[SampleRow], prompt_logprob_rows: list[PromptLogprobRow]
    ) -> None:
        assert [row.batch_row for row in sample_rows] == self._sampled
        self._need_memory()
        self._rows = [self._seen(row) for row in sample_rows]
        self._scored = prompt_logprob_rows

    def collect(self) -> StepOutput:
        assert self._output is None, "collected twice"
        queue = self._executor.queue
        assert queue[0] is self, "a step before this one was not collected"
        if self._contexts is None:
            self._forward()
        self._output = self._draw()
        queue.pop(0)
        self._executor.num_in_flight -= 1
        if queue:
            queue[0]._forward()
        return self._output

    def _need_memory(self) -> None:
        executor = self._executor
        executor.queue.remove(self)
        executor.num_in_flight -= 1
        executor.need_memory(self._batch)
        executor.queue.append(self)
        executor.num_in_flight += 1

    def _seen(self, row: SampleRow) -> SampleRow:
        """row as it is now, without the token that only the device has, where it is not needed."""
        output_ids = [int(one) for one in row.output_ids]
        needs_it = row.params.has_penalties or row.allowed_ids is not None
        if row.batch_row in self._relayed and not needs_it:
            output_ids[-1] = -1
        allowed = None if row.allowed_ids is None else row.allowed_ids.copy()
        prompt_ids = [int(one) for one in row.prompt_ids]
        return msgspec.structs.replace(
            row, prompt_ids=prompt_ids, output_ids=output_ids, allowed_ids=allowed
        )

    def _forward(self) -> None:
        executor, batch = self._executor, self._batch
        for row in self._relayed:
            last = batch.cu_query_lens[row + 1] - 1
            batch.input_ids[last] = executor.last_tokens[int(batch.table_rows[row])]
        self._contexts = executor.forward(batch)
        for slots in self.spoils_after:
            executor.tokens[slots] = -1

    def _draw(self) -> StepOutput:
        assert self._contexts is not None and self._rows is not None
        for row in self._rows:
            if row.output_ids and row.output_ids[-1] == -1:
                assert isinstance(row.output_ids, list)
                row.output_ids[-1] = self._contexts[row.batch_row][-1]
        output = self._executor.draw(self._batch, self._contexts, self._rows, self._scored)
        for row, sampled in zip(self._rows, output.sampled, strict=True):
            table_row = int(self._batch.table_rows[row.batch_row])
            self._executor.last_tokens[table_row] = sampled.token_id
        return output
