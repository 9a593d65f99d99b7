"""Attention of one new token per row over its cached keys, split over the keys (split-KV).

A program takes one row, one kv head and one split, with the query heads of the group packed into
the rows of a matrix tile, so keys and values are read once. The splits' partial results are merged
by log-sum-exp (merge_states.py). The grid depends on numbers of the host only, so a captured CUDA
graph stays right when rows grow: a split with no keys marks itself as empty and ends.

Shape letters: B rows, H query heads, K kv heads, D head_dim, S slots, R x C slot table.
Source: Flash-Decoding (Dao et al., 2023); paging as in PagedAttention (Kwon et al., 2023).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from . import launch_table
from .merge_states import PartialStates, merge_states, partial_states
from .paged_kv import check_pool, logit_factors, pool_view
from .split_attention import attend_split, split_bounds

# A split of fewer keys costs more to merge than it saves.
_SMALLEST_SPLIT_TOKENS = 128
_MOST_SPLITS = 128
# Programs per multiprocessor that keep enough loads in flight for the memory's latency.
_PROGRAMS_PER_MULTIPROCESSOR = 4
_SMALLEST_TILE_ROWS = 16  # of a matrix product
_LARGEST_TILE_ROWS = 64


def choose_num_splits(
    num_rows: int, num_heads: int, num_kv_heads: int, num_multiprocessors: int, max_kv_len: int
) -> int:
    """Splits per row that fill the GPU once, for rows of up to max_kv_len tokens."""
    programs = num_rows * num_kv_heads * _head_blocks(num_heads // num_kv_heads)
    wanted = triton.cdiv(num_multiprocessors * _PROGRAMS_PER_MULTIPROCESSOR, programs)
    useful = triton.cdiv(max_kv_len, _SMALLEST_SPLIT_TOKENS)
    splits: int = min(wanted, useful, _MOST_SPLITS)
    return max(1, splits)


def decode_attention(
    q: torch.Tensor,
    k_pool: torch.Tensor,
    v_pool: torch.Tensor,
    slot_table: torch.Tensor,
    table_rows: torch.Tensor,
    kv_lens: torch.Tensor,
    out: torch.Tensor,
    workspace: torch.Tensor,
    *,
    scale: float,
    num_splits: int,
    split_tokens: int | None = None,
    logit_cap: float = 0.0,
    window: int = 0,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
    kv_starts: torch.Tensor | None = None,
    page_size: int = 1,
    lse: torch.Tensor | None = None,
) -> None:
    """Write the attention of q over each row's kv_lens tokens, its own included, to out.

    q: [B, H, D], the heads of a row contiguous; k_pool and v_pool: [S, K, D], contiguous, in q's
    dtype or float8_e4m3fn, where a stored value times k_scale (v_scale) is the true one.
    slot_table: [R, C] int32; table_rows: [B] int64; kv_lens: [B] int32; out: [B, H, D], contiguous.
    workspace: flat float32 of workspace_floats(B, H, num_splits, D), free to reuse afterwards; not
    used if num_splits is 1. lse: [B, H] float32 or None, log-sum-exp of the logits in base 2.
    kv_starts: [B] int32 or None, the first position that counts. window: keys that the query sees,
    its own included; 0 is all. logit_cap: 0 is none. Rows with no key are zero.

    A row is cut into num_splits parts of equal length, rounded up to a multiple of split_tokens
    (None: a small number). With num_splits large enough that split_tokens is the length of every
    part, or the same in every call, a row's bits do not depend on the rest of the batch.
    """
    num_rows, num_heads, head_dim = q.shape
    assert out.shape == q.shape and out.is_contiguous(), f"out {out.shape} is not like q {q.shape}"
    if num_splits > 1:
        states = partial_states(workspace, num_rows, num_heads, num_splits, head_dim)
    else:
        lse_view = None if lse is None else lse.view(num_rows, num_heads, 1)
        states = PartialStates(out.view(num_rows, num_heads, 1, head_dim), lse_view)
    decode_states(
        q,
        k_pool,
        v_pool,
        slot_table,
        table_rows,
        kv_lens,
        states,
        scale=scale,
        first_state=0,
        num_splits=num_splits,
        split_tokens=split_tokens,
        logit_cap=logit_cap,
        window=window,
        k_scale=k_scale,
        v_scale=v_scale,
        kv_starts=kv_starts,
        page_size=page_size,
    )
    if num_splits > 1:
        merge_states(states, out, lse)


def decode_states(
    q: torch.Tensor,
    k_pool: torch.Tensor,
    v_pool: torch.Tensor,
    slot_table: torch.Tensor,
    table_rows: torch.Tensor,
    kv_lens: torch.Tensor,
    states: PartialStates,
    *,
    scale: float,
    first_state: int,
    num_splits: int,
    split_tokens: int | None,
    logit_cap: float,
    window: int,
    k_scale: float,
    v_scale: float,
    kv_starts: torch.Tensor | None,
    page_size: int,
) -> None:
    """decode_attention before the merge: fill num_splits of the states from first_state on.

    A state over no keys gets log-sum-exp minus infinity; its output is written (as zero) only if
    it is the row's only one.
    """
    num_rows, num_heads, head_dim = q.shape
    num_kv_heads = k_pool.shape[1]
    check_pool(q, k_pool, v_pool, slot_table)
    if num_rows == 0:
        return
    group = num_heads // num_kv_heads
    launch = launch_table.decode_launch(
        q.device, head_dim, q.element_size(), _tile_rows(group), k_pool.dtype != q.dtype
    )
    qk_factor, cap = logit_factors(scale * k_scale, logit_cap)
    num_states = states.out.shape[2]
    _decode_kernel[(num_kv_heads * _head_blocks(group), num_rows, num_splits)](
        q,
        pool_view(k_pool),
        pool_view(v_pool),
        slot_table,
        table_rows,
        kv_lens,
        kv_starts,
        states.out,
        states.lse,
        q.stride(0),
        slot_table.stride(0),
        num_states,
        first_state,
        split_tokens or _SMALLEST_SPLIT_TOKENS,
        window,
        qk_factor,
        cap,
        v_scale,
        NUM_KV_HEADS=num_kv_heads,
        GROUP=group,
        HEAD_DIM=head_dim,
        BLOCK_D=triton.next_power_of_2(head_dim),
        BLOCK_H=launch.block_m,
        BLOCK_N=launch.block_n,
        PAGE_SIZE=page_size,
        HAS_STARTS=kv_starts is not None,
        HAS_WINDOW=window > 0,
        HAS_CAP=logit_cap > 0,
        HAS_LSE=states.lse is not None,
        IS_ONLY_STATE=num_states == 1,
        num_warps=launch.num_warps,
        num_stages=launch.num_stages,
    )


def _tile_rows(group: int) -> int:
    rows: int = triton.next_power_of_2(group)
    return min(max(rows, _SMALLEST_TILE_ROWS), _LARGEST_TILE_ROWS)


def _head_blocks(group: int) -> int:
    blocks: int = triton.cdiv(group, _tile_rows(group))
    return blocks


@triton.jit
def _decode_kernel(
    q,
    k_pool,
    v_pool,
    slot_table,
    table_rows,
    kv_lens,
    kv_starts,
    partial_out,
    partial_lse,
    q_stride,
    table_stride,
    num_states,
    first_state,
    split_tokens,
    window,
    qk_factor,
    cap,
    v_scale,
    NUM_KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    HAS_STARTS: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_CAP: tl.constexpr,
    HAS_LSE: tl.constexpr,
    IS_ONLY_STATE: tl.constexpr,
):
    # kv heads vary fastest: programs that run together read neighbouring bytes of the same slots.
    HEAD_BLOCKS: tl.constexpr = (GROUP + BLOCK_H - 1) // BLOCK_H
    kv_head = tl.program_id(0) // HEAD_BLOCKS
    row = tl.program_id(1).to(tl.int64)
    split = tl.program_id(2)

    in_group = tl.program_id(0) % HEAD_BLOCKS * BLOCK_H + tl.arange(0, BLOCK_H)
    is_head = in_group < GROUP
    heads = kv_head * GROUP + in_group
    dims = tl.arange(0, BLOCK_D)
    is_dim = dims < HEAD_DIM
    # Place of (row, head, state) in [B, H, num_states].
    places = (row * (NUM_KV_HEADS * GROUP) + heads) * num_states + first_state + split
    out_places = partial_out + places[:, None] * HEAD_DIM + dims[None, :]
    out_mask = is_head[:, None] & is_dim[None, :]

    start = 0
    if HAS_STARTS:
        start = tl.load(kv_starts + row)
    length = tl.load(kv_lens + row)
    if HAS_WINDOW:
        start = tl.maximum(start, length - window)
    low, high = split_bounds(start, length, split, tl.num_programs(2), split_tokens)
    if low >= high:
        if HAS_LSE:
            tl.store(partial_lse + places, tl.full([BLOCK_H], -float("inf"), tl.float32), is_head)
        if IS_ONLY_STATE:
            zeros = tl.zeros([BLOCK_H, BLOCK_D], partial_out.dtype.element_ty)
            tl.store(out_places, zeros, mask=out_mask)
        return

    queries = tl.load(
        q + row * q_stride + heads[:, None] * HEAD_DIM + dims[None, :], mask=out_mask, other=0.0
    )  # [BLOCK_H, BLOCK_D]
    table_row = slot_table + tl.load(table_rows + row) * table_stride
    k_head = k_pool + kv_head * HEAD_DIM
    v_head = v_pool + kv_head * HEAD_DIM
    attended, lse = attend_split(
        queries, k_head, v_head, table_row, low, high, qk_factor, cap, v_scale,
        NUM_KV_HEADS, HEAD_DIM, BLOCK_H, BLOCK_D, BLOCK_N, PAGE_SIZE, HAS_CAP,
    )  # fmt: skip
    tl.store(out_places, attended.to(partial_out.dtype.element_ty), mask=out_mask)
    if HAS_LSE:
        tl.store(partial_lse + places, lse, mask=is_head)
