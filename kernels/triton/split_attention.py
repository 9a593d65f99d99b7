"""Attention of a tile of queries over one part of the keys that they all see.

Decode and the shared part of a cascade cut their keys into such parts; merge_states.py puts the
results together. Extend has a loop of its own (extend_attention.py): its tiles have a diagonal.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .paged_kv import capped, slots_of, widened


@triton.jit
def split_bounds(start, end, split, num_splits, split_tokens):
    """The keys [low, high) of a split of [start, end); those at the end may have none.

    All are equally long: a multiple of split_tokens.
    """
    per_split = tl.cdiv(tl.cdiv(end - start, num_splits), split_tokens) * split_tokens
    low = start + split * per_split
    return low, tl.minimum(low + per_split, end)


@triton.jit
def attend_split(
    queries,
    k_head,
    v_head,
    table_row,
    low,
    high,
    qk_factor,
    cap,
    v_scale,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    HAS_CAP: tl.constexpr,
):
    """Attention of queries [BLOCK_M, BLOCK_D] over keys [low, high), at least one, and its lse.

    k_head and v_head point at a kv head in slot 0 of their pools. lse: [BLOCK_M], in base 2.
    """
    dims = tl.arange(0, BLOCK_D)
    is_dim = dims < HEAD_DIM
    peak = tl.full([BLOCK_M], -float("inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    for first in range(low, high, BLOCK_N):
        positions = first + tl.arange(0, BLOCK_N)
        is_key = positions < high
        slots = slots_of(table_row, positions, is_key, PAGE_SIZE, True) * (NUM_KV_HEADS * HEAD_DIM)
        keys = tl.load(
            k_head + slots[None, :] + dims[:, None],
            mask=is_key[None, :] & is_dim[:, None],
            other=0.0,
        )  # [BLOCK_D, BLOCK_N]
        logits = tl.dot(queries, widened(keys, queries.dtype), input_precision="ieee") * qk_factor
        if HAS_CAP:
            logits = capped(logits, cap)
        logits = tl.where(is_key[None, :], logits, -float("inf"))
        values = tl.load(
            v_head + slots[:, None] + dims[None, :],
            mask=is_key[:, None] & is_dim[None, :],
            other=0.0,
        )  # [BLOCK_N, BLOCK_D]
        # Every block holds at least one key, so the peak is finite from the first block on.
        new_peak = tl.maximum(peak, tl.max(logits, 1))
        weights = tl.exp2(logits - new_peak[:, None])
        rescale = tl.exp2(peak - new_peak)
        total = total * rescale + tl.sum(weights, 1)
        acc = acc * rescale[:, None]
        acc = tl.dot(
            weights.to(queries.dtype), widened(values, queries.dtype), acc, input_precision="ieee"
        )
        peak = new_peak
    return acc * (v_scale / total)[:, None], peak + tl.log2(total)
