"""KvPool: the keys and values of every cached token by slot, in torch.

Knows nothing of who owns a slot. Slot 0 is a dummy: padded writes go there and nobody reads it.
The system commits memory when a slot is first written, so an empty pool costs almost nothing.
"""

from __future__ import annotations

import torch

from ..loading.model_config import ModelConfig
from .kv_layout import kv_shape, untouched_memory


class KvPool:
    """k and v: [num_layers, num_slots, num_kv_heads, head_dim], contiguous, zero at first.

    Zero, not undefined: padded reads of never-written slots must be finite.
    """

    def __init__(
        self, config: ModelConfig, num_slots: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.num_slots = num_slots
        self.dtype = dtype
        shape = kv_shape(config, num_slots, str(dtype).removeprefix("torch."))
        self.k = _lazy_zeros(shape, dtype, device)
        self.v = _lazy_zeros(shape, dtype, device)

    @property
    def num_bytes(self) -> int:
        """Size of k and v together, whether committed yet or not."""
        return self.k.nbytes + self.v.nbytes

    def write(self, layer: int, slots: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
        """Store k and v [T, K, D] of one layer at slots [T] int64."""
        self.k[layer].index_copy_(0, slots, k)
        self.v[layer].index_copy_(0, slots, v)


def _lazy_zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    # torch.zeros writes every page.
    memory = untouched_memory(shape, str(dtype).removeprefix("torch."))
    return torch.frombuffer(memory, dtype=dtype).view(shape)
