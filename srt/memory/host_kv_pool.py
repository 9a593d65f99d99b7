"""HostKvPool: the keys and values of every cached token by slot, for the CPU engine; no torch.

Knows nothing of who owns a slot. Slot 0 is a dummy: padded writes go there and nobody reads it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..loading.model_config import ModelConfig
from .kv_layout import kv_shape, untouched_memory

# numpy has no bfloat16: the engine takes its bits as uint16.
_STORAGE = {"bfloat16": np.uint16, "float32": np.float32, "int8": np.int8}


class HostKvPool:
    """k and v of kv_shape, contiguous, zero at first; dtype is bfloat16, float32 or int8."""

    def __init__(self, config: ModelConfig, num_slots: int, dtype: str) -> None:
        self.num_slots = num_slots
        self.dtype = dtype
        shape = kv_shape(config, num_slots, dtype)
        self.k: npt.NDArray[Any] = _zeros(shape, dtype)
        self.v: npt.NDArray[Any] = _zeros(shape, dtype)

    @property
    def num_bytes(self) -> int:
        """Size of k and v together, whether committed yet or not."""
        return self.k.nbytes + self.v.nbytes


def _zeros(shape: tuple[int, ...], dtype: str) -> npt.NDArray[Any]:
    return np.frombuffer(untouched_memory(shape, dtype), dtype=_STORAGE[dtype]).reshape(shape)
