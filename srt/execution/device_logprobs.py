"""Log-probabilities computed on the device without the host waiting, then read as numbers.

The meaning is that of logprobs.py: the raw distribution, ties broken by the lower id. Here nothing
may depend on a value of the device, so equal entries are ordered by a stable sort.

Shape letters: P positions, V vocabulary, K top candidates, N pairs of a position and an id.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from ..messages import PositionLogprobs
from ..sampling_params import LogprobOptions
from .logprobs import MIN_LOGPROB
from .packed_arrays import HostArray

# Positions scored at once: their f32 logits take 64 MB at a vocabulary of 128k.
SCORED_POSITIONS = 128


@dataclass(frozen=True, slots=True)
class LogprobPlan:
    """Positions that want log-probabilities, with what each wants."""

    options: Sequence[LogprobOptions]  # [P]

    @property
    def num_top(self) -> int:
        """K: the most that a position wants."""
        return max((one.num_top for one in self.options), default=0)

    def id_pairs(self) -> tuple[HostArray, HostArray]:
        """Positions [N] and ids [N], both int64, that are wanted by id."""
        positions = [i for i, one in enumerate(self.options) for _ in one.token_ids]
        ids = [token_id for one in self.options for token_id in one.token_ids]
        return np.array(positions, dtype=np.int64), np.array(ids, dtype=np.int64)


def compute_logprobs(
    logits: torch.Tensor,
    targets: torch.Tensor,
    num_top: int,
    pair_positions: torch.Tensor,
    pair_ids: torch.Tensor,
) -> dict[str, torch.Tensor]:
    """Enqueue everything that LogprobPlan's positions want.

    logits: [P, V] f32, not changed; targets: [P] int64. Returns target_logprobs [P], by_id [N],
    top_logprobs [P, K] and top_ids [P, K].
    """
    logprobs = _raw_logprobs(logits)
    found = {"target_logprobs": logprobs.gather(1, targets.unsqueeze(1)).squeeze(1)}
    if len(pair_ids):
        found["by_id"] = logprobs[pair_positions, pair_ids]
    if num_top:
        ordered = torch.sort(logprobs, dim=-1, descending=True, stable=True)
        found["top_logprobs"] = ordered.values[:, :num_top].clone(
            memory_format=torch.contiguous_format
        )
        found["top_ids"] = ordered.indices[:, :num_top].clone(memory_format=torch.contiguous_format)
    return found


def read_logprobs(
    plan: LogprobPlan, target_ids: Sequence[int], found: dict[str, HostArray]
) -> list[PositionLogprobs]:
    """compute_logprobs' results, on the host, as one PositionLogprobs per position."""
    targets = found["target_logprobs"].tolist()
    by_id = iter(found["by_id"].tolist() if "by_id" in found else ())
    positions: list[PositionLogprobs] = []
    for i, options in enumerate(plan.options):
        top = None
        if options.num_top:
            values = found["top_logprobs"][i, : options.num_top].tolist()
            ids = found["top_ids"][i, : options.num_top].tolist()
            top = tuple((max(v, MIN_LOGPROB), one) for v, one in zip(values, ids, strict=True))
        pairs = tuple((max(next(by_id), MIN_LOGPROB), one) for one in options.token_ids)
        logprob = max(targets[i], MIN_LOGPROB)
        positions.append(PositionLogprobs(logprob, target_ids[i], top, pairs or None))
    return positions


def _raw_logprobs(logits: torch.Tensor) -> torch.Tensor:
    """As logprobs.raw_logprobs, with the special rows chosen on the device."""
    logprobs = torch.log_softmax(logits, dim=-1)
    is_special = torch.isnan(logprobs[:, :1])
    infinite = logits == math.inf
    num_infinite = infinite.sum(-1, keepdim=True)
    # Without an infinite logit there is no mass at all.
    share = torch.where(num_infinite > 0, -num_infinite.double().log(), -math.inf).float()
    return torch.where(is_special, torch.where(infinite, share, -math.inf), logprobs)
