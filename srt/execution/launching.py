"""LaunchingExecutor: an executor whose steps are launched now and collected later.

Between the two the device works and the host plans the next step. A launch has two halves, because
what a row may draw can depend on the token drawn before (penalties, grammars), and the forward pass
need not wait for that.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from .forward_batch import Executor, ForwardBatch, PromptLogprobRow, SampleRow, StepOutput


class LaunchedStep(Protocol):
    """One step on the device. sample() comes once, then collect() once.

    Raises DeviceOutOfMemory before the results are collected, or not at all; the step has then come
    to nothing, and others may be launched.
    """

    def run_forward_again(self, corrected: Mapping[int, int]) -> None:
        """Compute once more, with other relayed tokens than were drawn, by row of the slot table.

        Seldom: it may wait for an upload.
        """
        ...

    def sample(
        self, sample_rows: list[SampleRow], prompt_logprob_rows: list[PromptLogprobRow]
    ) -> None:
        """Enqueue draws and scores; sample_rows are those that were launched, in that order."""
        ...

    def collect(self) -> StepOutput:
        """Wait for the results."""
        ...


@runtime_checkable
class LaunchingExecutor(Executor, Protocol):
    """Steps run in the order of their launches; one may be launched before another is collected."""

    def launch(self, batch: ForwardBatch, sampled: list[int], relayed: list[int]) -> LaunchedStep:
        """Enqueue the forward pass of batch, which is read before this returns.

        sampled: the batch rows that will draw. relayed: those whose last new token is the one that
        the row's last step drew, and stays on the device. Raises DeviceOutOfMemory.
        """
        ...
