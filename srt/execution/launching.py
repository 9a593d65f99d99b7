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
    """One step on the device. sample() comes once, then collect() once."""

    def run_forward_again(self) -> None:
        """Take the relayed tokens anew, after they were corrected, and compute once more."""
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
        the row's last step drew, and stays on the device.
        """
        ...

    def correct_relayed(self, token_ids: Mapping[int, int]) -> None:
        """Replace what was drawn last for rows of the slot table."""
        ...
