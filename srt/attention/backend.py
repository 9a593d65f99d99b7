"""AttentionBackend: the seam between a model's layers and a way to compute attention."""

from __future__ import annotations

from typing import Protocol

import torch

from ..memory.kv_pool import KvPool
from .tensor_batch import TensorBatch


class AttentionBackend(Protocol):
    """Shape letters: T new tokens of all rows, H query heads, K kv heads, D head_dim."""

    name: str

    def prepare(self, batch: TensorBatch) -> None:
        """Work out, once per step, what every layer's forward needs for this batch."""
        ...

    def forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        layer: int,
        kv_pool: KvPool,
        batch: TensorBatch,
    ) -> torch.Tensor:
        """Store k and v in the pool, then attend causally over each row's whole context.

        q: [T, H, D]; k and v: [T, K, D], rotated already, in the pool's dtype. Returns [T, H, D].
        batch is the one last prepared. A row's result does not depend on the other rows.
        """
        ...
