"""Draw: from changed logits on the device to token ids on the device.

Two ways: one kernel for all rows, without the host (triton_draw.py), or the reference below, row by
row in torch, which waits for the device. Both draw what draw.py means.

Shape letters: R rows, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from .draw import draw, uniform
from .forward_batch import SampleRow
from .packed_arrays import HostArray


@dataclass(frozen=True, slots=True)
class DrawParams:
    """Parameters of R rows on the device; temperature 0 is greedy, top_k at least V keeps all."""

    temperature: torch.Tensor  # f32
    top_k: torch.Tensor  # int32
    top_p: torch.Tensor  # f32
    min_p: torch.Tensor  # f32
    seed: torch.Tensor  # int64
    position: torch.Tensor  # int64


class Draw(Protocol):
    """Draws a token per row."""

    def __call__(
        self,
        logits: torch.Tensor,
        params: DrawParams,
        rows: Sequence[SampleRow],
        floor: float = -math.inf,
    ) -> torch.Tensor:
        """[R] int64 for logits [R, V] f32; -1 where a row holds a NaN.

        rows are what params was made of. Where no logit is above floor, the lowest id among the
        largest ones is taken.
        """
        ...


def param_arrays(rows: Sequence[SampleRow], vocab_size: int) -> dict[str, HostArray]:
    """DrawParams' fields for rows, on the host."""
    params = [row.params for row in rows]
    greedy = [one.is_greedy for one in params]
    temperatures = [0.0 if g else p.temperature for g, p in zip(greedy, params, strict=True)]
    top_k = [min(p.top_k or vocab_size, vocab_size) for p in params]
    return {
        "temperature": np.array(temperatures, dtype=np.float32),
        "top_k": np.array(top_k, dtype=np.int32),
        "top_p": np.array([p.top_p for p in params], dtype=np.float32),
        "min_p": np.array([p.min_p for p in params], dtype=np.float32),
        "seed": np.array([row.seed for row in rows], dtype=np.int64),
        "position": np.array([row.position for row in rows], dtype=np.int64),
    }


def greedy_ids(logits: torch.Tensor) -> torch.Tensor:
    """The arg-max of each row, the lowest id among equals; -1 where a row holds a NaN."""
    best, ids = logits.max(dim=-1)  # NaN if any logit is
    return torch.where(torch.isnan(best), -1, ids)


def reference_draw(
    logits: torch.Tensor,
    params: DrawParams,
    rows: Sequence[SampleRow],
    floor: float = -math.inf,
) -> torch.Tensor:
    """Draw, in torch: exact, and slow on a device, where every row is waited for."""
    ids = greedy_ids(logits).tolist()
    temperatures = params.temperature.tolist()
    for i, row in enumerate(rows):
        if temperatures[i] == 0.0 or ids[i] < 0 or float(logits[i, ids[i]]) <= floor:
            continue
        ids[i] = draw(logits[i], row.params, uniform(row.seed, row.position))
    return torch.tensor(ids, dtype=torch.int64, device=logits.device)
