"""ScoreSlice: some positions of a step whose log-probabilities are wanted, from plan to numbers.

Slices bound how many rows of logits stand in memory at once; each has a prefix of its own in the
names of the arrays that go to the device and of the results that come back.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch

from ..messages import PositionLogprobs
from .device_logprobs import SCORED_POSITIONS, LogprobPlan, compute_logprobs, read_logprobs
from .forward_batch import PromptLogprobRow, SampleRow
from .packed_arrays import HostArray


class ScoreSlice:
    """places [P]: rows of the hidden states, or of the logits where those are there already."""

    def __init__(
        self, prefix: str, places: Sequence[int], targets: Sequence[int], plan: LogprobPlan
    ) -> None:
        self.places = places
        self.targets = targets
        self._prefix = prefix
        self._plan = plan

    def arrays(self) -> dict[str, HostArray]:
        """What is to be uploaded."""
        pair_positions, pair_ids = self._plan.id_pairs()
        return {
            f"{self._prefix}_places": np.array(self.places, dtype=np.int64),
            f"{self._prefix}_targets": np.array(self.targets, dtype=np.int64),
            f"{self._prefix}_pair_positions": pair_positions,
            f"{self._prefix}_pair_ids": pair_ids,
        }

    def staged(self, tensors: Mapping[str, torch.Tensor], name: str) -> torch.Tensor:
        """One of arrays(), uploaded."""
        return tensors[f"{self._prefix}_{name}"]

    def compute(
        self,
        logits: torch.Tensor,
        targets: torch.Tensor,
        tensors: Mapping[str, torch.Tensor],
    ) -> dict[str, torch.Tensor]:
        """Enqueue the scores of targets [P] under logits [P, V]; returns what is to come back."""
        pairs = self.staged(tensors, "pair_positions"), self.staged(tensors, "pair_ids")
        found = compute_logprobs(logits, targets, self._plan.num_top, *pairs)
        return {f"{self._prefix}_{name}": tensor for name, tensor in found.items()}

    def read(
        self, results: Mapping[str, HostArray], target_ids: Sequence[int]
    ) -> list[PositionLogprobs]:
        """The scores, once they are on the host."""
        start = f"{self._prefix}_"
        mine = {
            name.removeprefix(start): array
            for name, array in results.items()
            if name.startswith(start)
        }
        return read_logprobs(self._plan, target_ids, mine)


def slice_of_drawn(rows: Sequence[SampleRow]) -> ScoreSlice | None:
    """The sampled rows that want log-probabilities of the token drawn; None if none does."""
    wanted = [(i, row.logprobs) for i, row in enumerate(rows) if row.logprobs is not None]
    if not wanted:
        return None
    plan = LogprobPlan([options for _, options in wanted])
    return ScoreSlice("drawn", [i for i, _ in wanted], [], plan)


def slices_of_prompts(
    rows: Sequence[PromptLogprobRow], starts: Sequence[int]
) -> Iterator[ScoreSlice]:
    """All prompt positions to be scored, in order; starts: where batch rows begin on the T axis."""
    wanted = [
        (starts[row.batch_row] + row.first + i, target, row.options)
        for row in rows
        for i, target in enumerate(row.target_ids)
    ]
    for number, first in enumerate(range(0, len(wanted), SCORED_POSITIONS)):
        places, targets, options = zip(*wanted[first : first + SCORED_POSITIONS], strict=True)
        yield ScoreSlice(f"scored{number}", places, targets, LogprobPlan(options))
