"""Causal attention of several new tokens per row over cached and new keys.

The query heads that share a kv head are packed with the tokens into the rows of a tile, so a tile
covers neighbouring tokens and keys are read once per group. Tiles of all rows form one flat list:
the grid follows the number of new tokens, however they are spread over the rows, and each program
finds its row in the running sum of query lengths. Keys that every query of a tile sees are taken
without a mask; only the diagonal, and the lower edge of a window, are masked.

Shape letters: T new tokens of all rows, B rows, H query heads, K kv heads, D head_dim, S slots,
R x C slot table.
Source: FlashAttention-2 (Dao, 2023).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from . import launch_table
from .paged_kv import capped, check_pool, loaded, logit_factors, pool_view, slots_of, widened
from .tile_list import first_tile_of, num_tiles, run_of_tile

_ROWS_PER_SEARCH_STEP = 256
_SMALLEST_PRODUCT = 16  # elements along the inner side of a matrix product
_LARGEST_HEAD_DIM = 256


def supports_head_dim(head_dim: int) -> bool:
    """Whether a head is a power of 2 from 16 on, or the sum of two: 64, 80, 96, 128, 192, 256."""
    tail = head_dim - _largest_power_of_2(head_dim)
    is_sum_of_two = tail == 0 or tail == _largest_power_of_2(tail)
    return head_dim % _SMALLEST_PRODUCT == 0 and is_sum_of_two and head_dim <= _LARGEST_HEAD_DIM


def extend_attention(
    q: torch.Tensor,
    k_pool: torch.Tensor,
    v_pool: torch.Tensor,
    slot_table: torch.Tensor,
    table_rows: torch.Tensor,
    cu_query_lens: torch.Tensor,
    kv_lens: torch.Tensor,
    out: torch.Tensor,
    *,
    max_query_len: int,
    scale: float,
    logit_cap: float = 0.0,
    window: int = 0,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
    page_size: int = 1,
) -> None:
    """Write causal attention of each row's new tokens over all its tokens to out.

    The new tokens are the row's last ones, and their keys and values are in the pool already.
    q: [T, H, D], the heads of a token contiguous; out: [T, H, D], contiguous; cu_query_lens:
    [B + 1] int32, from 0 to T; kv_lens: [B] int32, the row's tokens with the new ones, at least as
    many; max_query_len: a bound on the new tokens of a row, for the choice of tiles only. The pool,
    the table, window and scales are those of decode_attention. Right for any query length, but a
    row of one token over a long context is faster in decode_attention, which splits its keys.
    """
    num_tokens, num_heads, head_dim = q.shape
    num_rows = table_rows.shape[0]
    num_kv_heads = k_pool.shape[1]
    check_pool(q, k_pool, v_pool, slot_table)
    assert out.shape == q.shape and out.is_contiguous(), f"out {out.shape} is not like q {q.shape}"
    if num_tokens == 0:
        return
    group = num_heads // num_kv_heads
    launch = launch_table.extend_launch(
        q.device, head_dim, q.element_size(), max_query_len * group, k_pool.dtype != q.dtype
    )
    head_width = _largest_power_of_2(head_dim)
    qk_factor, cap = logit_factors(scale * k_scale, logit_cap)
    tiles = num_tiles(num_tokens, num_rows, group, launch.block_m)
    _extend_kernel[(num_kv_heads, tiles)](
        q,
        pool_view(k_pool),
        pool_view(v_pool),
        slot_table,
        table_rows,
        cu_query_lens,
        kv_lens,
        out,
        num_rows,
        q.stride(0),
        slot_table.stride(0),
        window,
        qk_factor,
        cap,
        v_scale,
        NUM_KV_HEADS=num_kv_heads,
        GROUP=group,
        HEAD_DIM=head_dim,
        WIDTH=head_width,
        TAIL=head_dim - head_width,
        BLOCK_M=launch.block_m,
        BLOCK_N=launch.block_n,
        BLOCK_ROWS=_ROWS_PER_SEARCH_STEP,
        PAGE_SIZE=page_size,
        HAS_WINDOW=window > 0,
        HAS_CAP=logit_cap > 0,
        num_warps=launch.num_warps,
        num_stages=launch.num_stages,
    )


def _largest_power_of_2(number: int) -> int:
    return 1 << (number.bit_length() - 1)


@triton.jit
def _extend_kernel(
    q,
    k_pool,
    v_pool,
    slot_table,
    table_rows,
    cu_query_lens,
    kv_lens,
    out,
    num_rows,
    q_stride,
    table_stride,
    window,
    qk_factor,
    cap,
    v_scale,
    NUM_KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    TAIL: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_CAP: tl.constexpr,
):
    # A head of 80 or 96 is 64 and a tail of 16 or 32: a power of 2 would waste up to half the work.
    kv_head = tl.program_id(0)
    # Late tiles have more keys: they start first.
    tile = tl.num_programs(1) - 1 - tl.program_id(1)
    row = run_of_tile(cu_query_lens, num_rows, tile, GROUP, BLOCK_M, BLOCK_ROWS)
    query_start = tl.load(cu_query_lens + row)
    query_len = tl.load(cu_query_lens + row + 1) - query_start
    first_packed = (tile - first_tile_of(query_start, row, GROUP, BLOCK_M)) * BLOCK_M
    if first_packed >= query_len * GROUP:
        return

    packed = first_packed + tl.arange(0, BLOCK_M)
    tokens = packed // GROUP
    is_token = tokens < query_len
    heads = kv_head * GROUP + packed % GROUP
    prefix_len = tl.load(kv_lens + row) - query_len
    query_positions = prefix_len + tokens
    first_position = prefix_len + first_packed // GROUP
    last_token = tl.minimum((first_packed + BLOCK_M - 1) // GROUP, query_len - 1)
    num_keys = prefix_len + last_token + 1

    q_rows = q + (query_start + tokens).to(tl.int64) * q_stride + heads * HEAD_DIM
    dims = tl.arange(0, WIDTH)
    queries = tl.load(q_rows[:, None] + dims[None, :], mask=is_token[:, None], other=0.0)
    queries_tail = queries
    if TAIL:
        tail_dims = WIDTH + tl.arange(0, TAIL)
        queries_tail = tl.load(
            q_rows[:, None] + tail_dims[None, :], mask=is_token[:, None], other=0.0
        )

    table_row = slot_table + tl.load(table_rows + row) * table_stride
    k_head = k_pool + kv_head * HEAD_DIM
    v_head = v_pool + kv_head * HEAD_DIM
    peak = tl.full([BLOCK_M], -float("inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, WIDTH], tl.float32)
    acc_tail = tl.zeros([BLOCK_M, TAIL if TAIL else 16], tl.float32)

    # Keys in [whole_low, whole_high) are seen by every query of the tile.
    low = 0
    whole_low = 0
    whole_high = (first_position + 1) // BLOCK_N * BLOCK_N
    if HAS_WINDOW:
        low = tl.maximum(first_position - window + 1, 0) // BLOCK_N * BLOCK_N
        whole_low = tl.cdiv(tl.maximum(num_keys - window, 0), BLOCK_N) * BLOCK_N
        whole_low = tl.minimum(whole_low, tl.cdiv(num_keys, BLOCK_N) * BLOCK_N)
        whole_high = tl.maximum(whole_low, whole_high)
        acc, acc_tail, peak, total = _attend(
            acc, acc_tail, peak, total, queries, queries_tail, k_head, v_head, table_row,
            query_positions, low, whole_low, num_keys, window, qk_factor, cap,
            NUM_KV_HEADS, HEAD_DIM, WIDTH, TAIL, BLOCK_N, PAGE_SIZE, True, True, HAS_CAP,
        )  # fmt: skip
    acc, acc_tail, peak, total = _attend(
        acc, acc_tail, peak, total, queries, queries_tail, k_head, v_head, table_row,
        query_positions, whole_low, whole_high, num_keys, window, qk_factor, cap,
        NUM_KV_HEADS, HEAD_DIM, WIDTH, TAIL, BLOCK_N, PAGE_SIZE, False, HAS_WINDOW, HAS_CAP,
    )  # fmt: skip
    acc, acc_tail, peak, total = _attend(
        acc, acc_tail, peak, total, queries, queries_tail, k_head, v_head, table_row,
        query_positions, whole_high, num_keys, num_keys, window, qk_factor, cap,
        NUM_KV_HEADS, HEAD_DIM, WIDTH, TAIL, BLOCK_N, PAGE_SIZE, True, HAS_WINDOW, HAS_CAP,
    )  # fmt: skip

    factor = (v_scale / total)[:, None]
    places = (query_start + tokens).to(tl.int64) * (NUM_KV_HEADS * GROUP) + heads
    out_rows = out + places[:, None] * HEAD_DIM
    tl.store(
        out_rows + dims[None, :], (acc * factor).to(out.dtype.element_ty), mask=is_token[:, None]
    )
    if TAIL:
        tail_dims = WIDTH + tl.arange(0, TAIL)
        tl.store(
            out_rows + tail_dims[None, :],
            (acc_tail * factor).to(out.dtype.element_ty),
            mask=is_token[:, None],
        )


@triton.jit
def _attend(
    acc, acc_tail, peak, total, queries, queries_tail, k_head, v_head, table_row,
    query_positions, low, high, num_keys, window, qk_factor, cap,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    TAIL: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    MASKED: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_CAP: tl.constexpr,
):  # fmt: skip
    """Online softmax over the keys [low, high); without MASKED every query sees all of them."""
    dims = tl.arange(0, WIDTH)
    for first in range(low, high, BLOCK_N):
        positions = first + tl.arange(0, BLOCK_N)
        is_key = positions < num_keys
        slots = slots_of(table_row, positions, is_key, PAGE_SIZE, MASKED) * (
            NUM_KV_HEADS * HEAD_DIM
        )
        k_columns = k_head + slots[None, :]
        v_rows = v_head + slots[:, None]
        keys = loaded(k_columns + dims[:, None], is_key[None, :], MASKED)  # [WIDTH, BLOCK_N]
        logits = tl.dot(queries, widened(keys, queries.dtype), input_precision="ieee")
        if TAIL:
            tail_dims = WIDTH + tl.arange(0, TAIL)
            keys = loaded(k_columns + tail_dims[:, None], is_key[None, :], MASKED)
            logits = tl.dot(
                queries_tail, widened(keys, queries.dtype), logits, input_precision="ieee"
            )
        logits *= qk_factor
        if HAS_CAP:
            logits = capped(logits, cap)
        if MASKED:
            is_seen = positions[None, :] <= query_positions[:, None]
            if HAS_WINDOW:
                is_seen &= positions[None, :] > query_positions[:, None] - window
            logits = tl.where(is_seen, logits, -float("inf"))
        new_peak = tl.maximum(peak, tl.max(logits, 1))
        base = new_peak
        if HAS_WINDOW:
            # A query may see no key of the tile's first blocks: a finite base avoids NaN.
            base = tl.where(new_peak == -float("inf"), 0.0, new_peak)
        weights = tl.exp2(logits - base[:, None])
        rescale = tl.exp2(peak - base)
        total = total * rescale + tl.sum(weights, 1)
        weights = weights.to(queries.dtype)
        values = loaded(v_rows + dims[None, :], is_key[:, None], MASKED)  # [BLOCK_N, WIDTH]
        acc = acc * rescale[:, None]
        acc = tl.dot(weights, widened(values, queries.dtype), acc, input_precision="ieee")
        if TAIL:
            tail_dims = WIDTH + tl.arange(0, TAIL)
            values = loaded(v_rows + tail_dims[None, :], is_key[:, None], MASKED)
            acc_tail = acc_tail * rescale[:, None]
            acc_tail = tl.dot(
                weights, widened(values, queries.dtype), acc_tail, input_precision="ieee"
            )
        peak = new_peak
    return acc, acc_tail, peak, total
