"""Launches of the attention kernels that are compiled: every head size, dtype and switch."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from support.kernel_compiler import KernelLaunch

from runtime.kernels.triton.decode_attention import decode_attention
from runtime.kernels.triton.extend_attention import extend_attention
from runtime.kernels.triton.merge_states import workspace_floats
from runtime.kernels.triton.shared_prefix import PrefixGroups, shared_prefix_attention
from runtime.kernels.triton.store_kv import store_kv

_ROWS, _CONTEXT, _SLOTS, _SPLITS = 4, 4096, 65536, 8
_BF16, _F16, _F32, _FP8 = torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn


def _meta(*shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def _pool(head_dim: int, num_kv_heads: int, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    """k_pool, v_pool, slot_table, table_rows."""
    return (
        _meta(_SLOTS, num_kv_heads, head_dim, dtype=dtype),
        _meta(_SLOTS, num_kv_heads, head_dim, dtype=dtype),
        _meta(_ROWS, _CONTEXT),
        _meta(_ROWS, dtype=torch.int64),
    )


def _decode(
    head_dim: int,
    dtype: torch.dtype,
    kv_dtype: torch.dtype,
    heads: tuple[int, int] = (32, 8),
    **options: Any,
) -> None:
    num_heads, num_kv_heads = heads
    decode_attention(
        _meta(_ROWS, num_heads, head_dim, dtype=dtype),
        *_pool(head_dim, num_kv_heads, kv_dtype),
        _meta(_ROWS),
        _meta(_ROWS, num_heads, head_dim, dtype=dtype),
        _meta(workspace_floats(_ROWS, num_heads, _SPLITS, head_dim), dtype=_F32),
        scale=0.125,
        num_splits=options.pop("num_splits", _SPLITS),
        **options,
    )


def _extend(
    head_dim: int,
    dtype: torch.dtype,
    kv_dtype: torch.dtype,
    heads: tuple[int, int] = (32, 8),
    max_query_len: int = 1000,
    **options: Any,
) -> None:
    num_heads, num_kv_heads = heads
    extend_attention(
        _meta(max_query_len, num_heads, head_dim, dtype=dtype),
        *_pool(head_dim, num_kv_heads, kv_dtype),
        _meta(_ROWS + 1),
        _meta(_ROWS),
        _meta(max_query_len, num_heads, head_dim, dtype=dtype),
        max_query_len=max_query_len,
        scale=0.125,
        **options,
    )


def _name(dtype: torch.dtype) -> str:
    return {_BF16: "bf16", _F16: "f16", _F32: "f32", _FP8: "fp8"}[dtype]


def _prefix(
    head_dim: int, dtype: torch.dtype, kv_dtype: torch.dtype, num_rows: int = 16, **options: Any
) -> None:
    num_heads, num_kv_heads, num_prefix_splits = 32, 8, 4
    num_states = num_prefix_splits + _SPLITS
    shared_prefix_attention(
        _meta(num_rows, num_heads, head_dim, dtype=dtype),
        *_pool(head_dim, num_kv_heads, kv_dtype),
        _meta(num_rows),
        PrefixGroups(_meta(num_rows), _meta(_ROWS + 1), _meta(num_rows)),
        _meta(num_rows, num_heads, head_dim, dtype=dtype),
        _meta(workspace_floats(num_rows, num_heads, num_states, head_dim), dtype=_F32),
        scale=0.125,
        num_prefix_splits=num_prefix_splits,
        num_splits=_SPLITS,
        **options,
    )


def _store(dtype: torch.dtype, kv_dtype: torch.dtype) -> None:
    k, v = (_meta(100, 8, 128, dtype=dtype) for _ in range(2))
    k_pool, v_pool = (_meta(_SLOTS, 8, 128, dtype=kv_dtype) for _ in range(2))
    store_kv(k, v, k_pool, v_pool, _meta(100, dtype=torch.int64))


def _launches_of(head_dim: int, dtype: torch.dtype, kv_dtype: torch.dtype) -> list[KernelLaunch]:
    suffix = f"{_name(dtype)} kv {_name(kv_dtype)} head_dim {head_dim}"
    on_hopper = None if dtype == _F32 else "wgmma"
    options = {"window": 512, "logit_cap": 30.0, "page_size": 16}
    return [
        KernelLaunch(f"decode {suffix}", partial(_decode, head_dim, dtype, kv_dtype)),
        KernelLaunch(f"extend {suffix}", partial(_extend, head_dim, dtype, kv_dtype), on_hopper),
        KernelLaunch(
            f"extend window cap page 16 {suffix}",
            partial(_extend, head_dim, dtype, kv_dtype, **options),
            on_hopper,
        ),
        KernelLaunch(f"shared prefix {suffix}", partial(_prefix, head_dim, dtype, kv_dtype)),
    ]


ATTENTION_LAUNCHES: list[KernelLaunch] = [
    *(
        launch
        for head_dim in (64, 80, 96, 128, 256)
        for kv_dtype in (_BF16, _FP8)
        for launch in _launches_of(head_dim, _BF16, kv_dtype)
    ),
    *_launches_of(128, _F16, _F16),
    *_launches_of(64, _F32, _F32),
    KernelLaunch(
        "decode window cap page 16 bf16 head_dim 128",
        partial(_decode, 128, _BF16, _BF16, window=512, logit_cap=30.0, page_size=16),
    ),
    KernelLaunch(
        "decode one split bf16 head_dim 128", partial(_decode, 128, _BF16, _BF16, num_splits=1)
    ),
    KernelLaunch(
        "decode 9 heads on 3 bf16 head_dim 64", partial(_decode, 64, _BF16, _BF16, (9, 3))
    ),
    KernelLaunch(
        "decode 64 heads on 1 bf16 head_dim 128", partial(_decode, 128, _BF16, _BF16, (64, 1))
    ),
    KernelLaunch(
        "extend 9 heads on 3 bf16 head_dim 64",
        partial(_extend, 64, _BF16, _BF16, (9, 3)),
        "wgmma",
    ),
    *(
        KernelLaunch(
            f"extend 64 rows bf16 kv {_name(kv_dtype)} head_dim {head_dim}",
            partial(_extend, head_dim, _BF16, kv_dtype, max_query_len=16),
            "wgmma",
        )
        for head_dim in (64, 128, 256)
        for kv_dtype in (_BF16, _FP8)
    ),
    *(
        KernelLaunch(
            f"shared prefix few rows bf16 kv {_name(kv_dtype)} head_dim {head_dim}",
            partial(_prefix, head_dim, _BF16, kv_dtype, num_rows=4),
        )
        for head_dim, kv_dtype in ((64, _BF16), (128, _BF16), (128, _FP8))
    ),
    KernelLaunch("store bf16", partial(_store, _BF16, _BF16)),
    KernelLaunch("store fp8", partial(_store, _BF16, _FP8)),
]
