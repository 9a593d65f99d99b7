"""Decode attention of rows that share a prefix: its keys are read once per group (cascade).

Rows are in groups. A group's shared part is computed for all its rows at once: their query heads
fill the rows of one matrix tile. Each row's own part is ordinary split decode from the end of the
prefix on, and the parts are merged by log-sum-exp.

Shape letters: B rows, G groups, H query heads, K kv heads, D head_dim, S slots, R x C slot table.
Source: Hydragen (Juravsky et al., 2024); cascade inference in FlashInfer (Ye et al., 2024).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from . import launch_table
from .decode_attention import decode_states
from .merge_states import PartialStates, merge_states, partial_states
from .paged_kv import check_pool, logit_factors, pool_view
from .split_attention import attend_split, split_bounds
from .tile_list import first_tile_of, num_tiles, run_of_tile

_SMALLEST_PREFIX_SPLIT_TOKENS = 256
_GROUPS_PER_SEARCH_STEP = 256


@dataclass(frozen=True, slots=True)
class PrefixGroups:
    """Which rows share how long a prefix; each row is in one group, at least its own.

    rows: [B] int32, the rows in order of groups; cu_rows: [G + 1] int32, where groups start in it;
    prefix_lens: [B] int32 by row, the same for the rows of a group, at most their kv_lens. The rows
    of a group have the same slots in the first prefix_lens places of their table rows.
    """

    rows: torch.Tensor
    cu_rows: torch.Tensor
    prefix_lens: torch.Tensor


def shared_prefix_attention(
    q: torch.Tensor,
    k_pool: torch.Tensor,
    v_pool: torch.Tensor,
    slot_table: torch.Tensor,
    table_rows: torch.Tensor,
    kv_lens: torch.Tensor,
    groups: PrefixGroups,
    out: torch.Tensor,
    workspace: torch.Tensor,
    *,
    scale: float,
    num_prefix_splits: int,
    num_splits: int,
    split_tokens: int | None = None,
    logit_cap: float = 0.0,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
    page_size: int = 1,
    lse: torch.Tensor | None = None,
) -> None:
    """What decode_attention writes to out, with shared prefixes read once per group.

    workspace: flat float32 of workspace_floats(B, H, num_prefix_splits + num_splits, D).
    num_prefix_splits cuts each group's prefix, num_splits the rest of each row, both in multiples
    of split_tokens. There is no window: rows of different length would not share its lower edge.
    """
    num_rows, num_heads, head_dim = q.shape
    assert out.shape == q.shape and out.is_contiguous(), f"out {out.shape} is not like q {q.shape}"
    if num_rows == 0:
        return
    num_states = num_prefix_splits + num_splits
    states = partial_states(workspace, num_rows, num_heads, num_states, head_dim)
    _prefix_states(
        q,
        k_pool,
        v_pool,
        slot_table,
        table_rows,
        groups,
        states,
        scale=scale * k_scale,
        num_splits=num_prefix_splits,
        split_tokens=split_tokens or _SMALLEST_PREFIX_SPLIT_TOKENS,
        logit_cap=logit_cap,
        v_scale=v_scale,
        page_size=page_size,
    )
    decode_states(
        q,
        k_pool,
        v_pool,
        slot_table,
        table_rows,
        kv_lens,
        states,
        scale=scale,
        first_state=num_prefix_splits,
        num_splits=num_splits,
        split_tokens=split_tokens,
        logit_cap=logit_cap,
        window=0,
        k_scale=k_scale,
        v_scale=v_scale,
        kv_starts=groups.prefix_lens,
        page_size=page_size,
    )
    merge_states(states, out, lse)


def _prefix_states(
    q: torch.Tensor,
    k_pool: torch.Tensor,
    v_pool: torch.Tensor,
    slot_table: torch.Tensor,
    table_rows: torch.Tensor,
    groups: PrefixGroups,
    states: PartialStates,
    *,
    scale: float,
    num_splits: int,
    split_tokens: int,
    logit_cap: float,
    v_scale: float,
    page_size: int,
) -> None:
    num_rows, num_heads, head_dim = q.shape
    num_kv_heads = k_pool.shape[1]
    num_groups = groups.cu_rows.shape[0] - 1
    check_pool(q, k_pool, v_pool, slot_table)
    group_heads = num_heads // num_kv_heads
    launch = launch_table.prefix_launch(
        head_dim, q.element_size(), num_rows * group_heads, k_pool.dtype != q.dtype
    )
    qk_factor, cap = logit_factors(scale, logit_cap)
    tiles = num_tiles(num_rows, num_groups, group_heads, launch.block_m)
    _prefix_kernel[(num_kv_heads, tiles, num_splits)](
        q,
        pool_view(k_pool),
        pool_view(v_pool),
        slot_table,
        table_rows,
        groups.rows,
        groups.cu_rows,
        groups.prefix_lens,
        states.out,
        states.lse,
        num_groups,
        q.stride(0),
        slot_table.stride(0),
        states.out.shape[2],
        split_tokens,
        qk_factor,
        cap,
        v_scale,
        NUM_KV_HEADS=num_kv_heads,
        GROUP=group_heads,
        HEAD_DIM=head_dim,
        BLOCK_D=triton.next_power_of_2(head_dim),
        BLOCK_M=launch.block_m,
        BLOCK_N=launch.block_n,
        BLOCK_GROUPS=_GROUPS_PER_SEARCH_STEP,
        PAGE_SIZE=page_size,
        HAS_CAP=logit_cap > 0,
        num_warps=launch.num_warps,
        num_stages=launch.num_stages,
    )


@triton.jit
def _prefix_kernel(
    q,
    k_pool,
    v_pool,
    slot_table,
    table_rows,
    group_rows,
    cu_group_rows,
    prefix_lens,
    partial_out,
    partial_lse,
    num_groups,
    q_stride,
    table_stride,
    num_states,
    split_tokens,
    qk_factor,
    cap,
    v_scale,
    NUM_KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_GROUPS: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    HAS_CAP: tl.constexpr,
):
    kv_head = tl.program_id(0)
    tile = tl.program_id(1)
    split = tl.program_id(2)
    group = run_of_tile(cu_group_rows, num_groups, tile, GROUP, BLOCK_M, BLOCK_GROUPS)
    first_row = tl.load(cu_group_rows + group)
    num_members = tl.load(cu_group_rows + group + 1) - first_row
    first_packed = (tile - first_tile_of(first_row, group, GROUP, BLOCK_M)) * BLOCK_M
    if first_packed >= num_members * GROUP:
        return

    packed = first_packed + tl.arange(0, BLOCK_M)
    members = packed // GROUP
    is_member = members < num_members
    heads = kv_head * GROUP + packed % GROUP
    rows = tl.load(group_rows + first_row + members, mask=is_member, other=0).to(tl.int64)
    places = (rows * (NUM_KV_HEADS * GROUP) + heads) * num_states + split

    leader = tl.load(group_rows + first_row).to(tl.int64)
    length = tl.load(prefix_lens + leader)
    low, high = split_bounds(0, length, split, tl.num_programs(2), split_tokens)
    if low >= high:
        tl.store(partial_lse + places, tl.full([BLOCK_M], -float("inf"), tl.float32), is_member)
        return

    dims = tl.arange(0, BLOCK_D)
    is_dim = dims < HEAD_DIM
    mask = is_member[:, None] & is_dim[None, :]
    q_rows = q + rows * q_stride + heads * HEAD_DIM
    queries = tl.load(q_rows[:, None] + dims[None, :], mask=mask, other=0.0)
    table_row = slot_table + tl.load(table_rows + leader) * table_stride
    k_head = k_pool + kv_head * HEAD_DIM
    v_head = v_pool + kv_head * HEAD_DIM
    attended, lse = attend_split(
        queries, k_head, v_head, table_row, low, high, qk_factor, cap, v_scale,
        NUM_KV_HEADS, HEAD_DIM, BLOCK_M, BLOCK_D, BLOCK_N, PAGE_SIZE, HAS_CAP,
    )  # fmt: skip
    tl.store(partial_out + places[:, None] * HEAD_DIM + dims[None, :], attended, mask=mask)
    tl.store(partial_lse + places, lse, mask=is_member)
