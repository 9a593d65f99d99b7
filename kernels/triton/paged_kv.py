"""What the attention kernels share: positions to slots, fp8 to numbers, the cap of logits.

A slot table row lists a request's slots in order of position. With a page size above 1 the slots
of a page follow each other, and only the entry of a page's first position is read.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

from . import launch_table

_LOG2_E = math.log2(math.e)


def check_pool(
    q: torch.Tensor, k_pool: torch.Tensor, v_pool: torch.Tensor, slot_table: torch.Tensor
) -> None:
    """Assert what the kernels' address arithmetic relies on."""
    num_heads, head_dim = q.shape[1:]
    num_kv_heads = k_pool.shape[1]
    assert q.stride(1) == head_dim and q.stride(2) == 1, f"q has strides {q.stride()}"
    assert k_pool.shape == v_pool.shape, f"pools differ: {k_pool.shape} and {v_pool.shape}"
    assert k_pool.is_contiguous() and v_pool.is_contiguous(), "a pool is not contiguous"
    assert k_pool.shape[2] == head_dim, f"head_dim of q {head_dim}, of the pool {k_pool.shape[2]}"
    assert num_heads % num_kv_heads == 0, f"{num_heads} heads do not share {num_kv_heads} kv heads"
    assert k_pool.dtype == v_pool.dtype, f"pools differ: {k_pool.dtype} and {v_pool.dtype}"
    assert k_pool.dtype in (q.dtype, torch.float8_e4m3fn), f"q {q.dtype}, pool {k_pool.dtype}"
    assert slot_table.dtype == torch.int32 and slot_table.stride(1) == 1, "slot table is not int32"


def pool_view(pool: torch.Tensor) -> torch.Tensor:
    """The pool as kernels on its device can read it: fp8 as bytes where the type is missing."""
    if pool.dtype == torch.float8_e4m3fn and not launch_table.has_fp8_type(pool.device):
        return pool.view(torch.uint8)
    return pool


def logit_factors(scale: float, logit_cap: float) -> tuple[float, float]:
    """What to multiply q @ k with, and the cap argument of capped(), for logits in base 2."""
    if logit_cap > 0:
        return 2 * scale / logit_cap * _LOG2_E, logit_cap * _LOG2_E
    return scale * _LOG2_E, 0.0


@triton.jit
def slots_of(table_row, positions, is_wanted, PAGE_SIZE: tl.constexpr, MASKED: tl.constexpr):
    """Slots of positions [N] as int64; where MASKED, 0 (the dummy slot) without is_wanted [N]."""
    first = positions
    if PAGE_SIZE > 1:
        first = positions // PAGE_SIZE * PAGE_SIZE
    slots = loaded(table_row + first, is_wanted, MASKED)
    if PAGE_SIZE > 1:
        slots += positions - first
    return slots.to(tl.int64)


@triton.jit
def loaded(pointers, mask, MASKED: tl.constexpr):
    """tl.load, with zeros where MASKED and not mask."""
    if MASKED:
        return tl.load(pointers, mask=mask, other=0.0)
    else:
        return tl.load(pointers)


@triton.jit
def widened(tile, dtype: tl.constexpr):
    """A tile of a pool in dtype. Bytes (uint8) are float8_e4m3fn on a GPU without that type."""
    if tile.dtype == tl.uint8:
        # Moved into an fp16, the exponent is 8 too low; this is right for subnormals too.
        bits = tile.to(tl.uint16)
        bits = ((bits & 0x80) << 8) | ((bits & 0x7F) << 7)
        return (bits.to(tl.float16, bitcast=True) * 256.0).to(dtype)
    else:
        return tile.to(dtype)


@triton.jit
def capped(doubled_logits, cap):
    """cap * tanh of half of doubled_logits, which are in base 2: 2 * log2(e) * logit / cap."""
    # exp2 may be infinite: the fraction is then 0.
    return cap * (1.0 - 2.0 / (tl.exp2(doubled_logits) + 1.0))
