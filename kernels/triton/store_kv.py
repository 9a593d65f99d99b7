"""Writing new keys and values to their slots in the paged pool, as fp8 where the pool is.

Shape letters: T new tokens, K kv heads, D head_dim, S slots.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .paged_kv import pool_view

_ELEMENTS_PER_PROGRAM = 2048
_E4M3_MAX = tl.constexpr(448.0)


def store_kv(
    k: torch.Tensor,
    v: torch.Tensor,
    k_pool: torch.Tensor,
    v_pool: torch.Tensor,
    out_slots: torch.Tensor,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
) -> None:
    """Write k and v to slots out_slots of the pools.

    k and v: [T, K, D], the heads of a token contiguous, as in views of one qkv matrix; pools:
    [S, K, D], contiguous, in k's dtype or float8_e4m3fn, where k / k_scale (v / v_scale) is stored,
    rounded to nearest and clamped to 448. out_slots: [T] int64. Where a slot is named twice, as the
    dummy slot is, either token may win.
    """
    num_tokens, num_kv_heads, head_dim = k.shape
    assert k.shape == v.shape, f"k has shape {tuple(k.shape)}, v {tuple(v.shape)}"
    assert k.stride()[1:] == v.stride()[1:] == (head_dim, 1), f"k {k.stride()}, v {v.stride()}"
    assert k_pool.is_contiguous() and v_pool.is_contiguous(), "a pool is not contiguous"
    assert k_pool.shape[1:] == v_pool.shape[1:] == k.shape[1:], f"k {k.shape}, pool {k_pool.shape}"
    assert k_pool.dtype == v_pool.dtype, f"pools differ: {k_pool.dtype} and {v_pool.dtype}"
    is_fp8 = k_pool.dtype == torch.float8_e4m3fn
    assert is_fp8 or k_pool.dtype == k.dtype, f"k is {k.dtype}, the pool {k_pool.dtype}"
    if num_tokens == 0:
        return
    token_size = num_kv_heads * head_dim
    block = min(triton.next_power_of_2(token_size), _ELEMENTS_PER_PROGRAM)
    _store_kv_kernel[(num_tokens, triton.cdiv(token_size, block))](
        k,
        v,
        pool_view(k_pool),
        pool_view(v_pool),
        out_slots,
        k.stride(0),
        v.stride(0),
        1.0 / k_scale,
        1.0 / v_scale,
        TOKEN_SIZE=token_size,
        BLOCK=block,
        IS_FP8=is_fp8,
        num_warps=4,
    )


@triton.jit
def _store_kv_kernel(
    k,
    v,
    k_pool,
    v_pool,
    out_slots,
    k_stride,
    v_stride,
    k_factor,
    v_factor,
    TOKEN_SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    IS_FP8: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    elements = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_element = elements < TOKEN_SIZE
    keys = tl.load(k + token * k_stride + elements, mask=is_element, other=0.0)
    values = tl.load(v + token * v_stride + elements, mask=is_element, other=0.0)
    place = tl.load(out_slots + token) * TOKEN_SIZE + elements
    if IS_FP8:
        keys = _to_fp8(keys.to(tl.float32) * k_factor, k_pool.dtype.element_ty)
        values = _to_fp8(values.to(tl.float32) * v_factor, v_pool.dtype.element_ty)
    tl.store(k_pool + place, keys, mask=is_element)
    tl.store(v_pool + place, values, mask=is_element)


@triton.jit
def _to_fp8(x, dtype: tl.constexpr):
    """float32 to float8_e4m3fn, or to its byte where dtype is uint8; to nearest, ties to even."""
    x = tl.minimum(tl.maximum(x, -_E4M3_MAX), _E4M3_MAX)
    if dtype == tl.uint8:
        sign = (x.to(tl.int32, bitcast=True) >> 24) & 0x80
        size = tl.abs(x)
        bits = size.to(tl.int32, bitcast=True)
        # Twenty mantissa bits go, rounding up by what is above half or by half next to an odd bit.
        normal = ((bits + 0x7FFFF + ((bits >> 20) & 1)) >> 20) - ((127 - 7) << 3)
        # Below 2 ** -6 a step is 2 ** -9, the step of float32 at 2 ** 14: the addition rounds.
        subnormal = (size + 16384.0).to(tl.int32, bitcast=True) - 0x46800000
        return (tl.where(size < 0.015625, subnormal, normal) | sign).to(tl.uint8)
    else:
        return x.to(dtype)
