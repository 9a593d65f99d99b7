"""Sizes of the KV pool, and memory for it that costs nothing before it is written."""

from __future__ import annotations

import math
import mmap

from ..loading.model_config import ModelConfig

ITEM_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4, "int8": 1, "float8_e4m3fn": 1}
SCALE_BYTES = 4  # the f32 scale behind a head of int8


def kv_shape(config: ModelConfig, num_slots: int, dtype: str) -> tuple[int, int, int, int]:
    """[num_layers, num_slots, num_kv_heads, head_dim] of the pool's k, and of its v.

    A head of int8 is followed by the bytes of its scale.
    """
    width = config.head_dim + (SCALE_BYTES if dtype == "int8" else 0)
    return config.num_layers, num_slots, config.num_kv_heads, width


def bytes_per_token(config: ModelConfig, dtype: str) -> int:
    """Bytes of K and V of one token over all layers."""
    return 2 * math.prod(kv_shape(config, 1, dtype)) * ITEM_BYTES[dtype]


def untouched_memory(shape: tuple[int, ...], dtype: str) -> mmap.mmap:
    """Fresh anonymous memory: it reads as zero, and the system commits a page when it is written.

    An ordinary array of zeros may write every page at once.
    """
    return mmap.mmap(-1, math.prod(shape) * ITEM_BYTES[dtype])
