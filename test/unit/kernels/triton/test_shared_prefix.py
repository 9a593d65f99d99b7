"""Cascade decode against float64 attention over the whole context, interpreted."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.guarded_tensors import GuardedOutput, guarded
from support.paged_attention_cases import PagedCase, assert_close, expected_attention, paged_case

from runtime.kernels.triton.merge_states import workspace_floats
from runtime.kernels.triton.shared_prefix import PrefixGroups, shared_prefix_attention

# Rows 0, 2, 4 share 100 tokens, rows 1 and 5 share 64; row 5 has nothing of its own but itself.
KV_LENS = (130, 80, 101, 40, 100, 65)
SHARED = (((4, 0, 2), 100), ((1, 5), 64))


def prefix_groups(num_rows: int, shared: Any) -> PrefixGroups:
    """Groups of shared, and one of its own without a prefix for every other row."""
    grouped = [row for rows, _ in shared for row in rows]
    groups = [list(rows) for rows, _ in shared]
    groups += [[row] for row in range(num_rows) if row not in grouped]
    prefix_lens = [0] * num_rows
    for rows, length in shared:
        for row in rows:
            prefix_lens[row] = length
    starts = [0]
    for group in groups:
        starts.append(starts[-1] + len(group))
    rows = [row for group in groups for row in group]
    return PrefixGroups(
        *(guarded(torch.tensor(x, dtype=torch.int32)) for x in (rows, starts, prefix_lens))
    )


def run_cascade(case: PagedCase, groups: PrefixGroups, **options: Any) -> torch.Tensor:
    num_rows, num_heads, head_dim = case.q.shape
    splits = {"num_prefix_splits": 2, "num_splits": 1, "split_tokens": 32} | options
    num_states = splits["num_prefix_splits"] + splits["num_splits"]
    out = GuardedOutput.empty(tuple(case.q.shape), case.q.dtype)
    size = workspace_floats(num_rows, num_heads, num_states, head_dim)
    workspace = GuardedOutput.empty((size,), torch.float32)
    shared_prefix_attention(
        case.q,
        case.k_pool,
        case.v_pool,
        case.slot_table,
        case.table_rows,
        case.kv_lens,
        groups,
        out.tensor,
        workspace.tensor,
        scale=case.scale,
        **splits,
    )
    out.assert_guards_hold()
    workspace.assert_guards_hold()
    return out.tensor


# The loop over the keys is that of decode, which is run for all head sizes in both dtypes.
@pytest.mark.parametrize(
    ("head_dim", "dtype"),
    [(64, torch.float32), (80, torch.float16), (128, torch.float16), (256, torch.float16)],
)
def test_every_head_dim_equals_the_reference(head_dim: int, dtype: torch.dtype) -> None:
    case = paged_case(KV_LENS, head_dim=head_dim, dtype=dtype, shared_prefixes=SHARED)

    out = run_cascade(case, prefix_groups(len(KV_LENS), SHARED))

    assert_close(out, expected_attention(case)[0])


@pytest.mark.parametrize("heads", [(2, 2), (9, 3), (20, 1)])
def test_every_ratio_of_query_to_kv_heads_equals_the_reference(heads: tuple[int, int]) -> None:
    case = paged_case(KV_LENS, num_heads=heads[0], num_kv_heads=heads[1], shared_prefixes=SHARED)

    out = run_cascade(case, prefix_groups(len(KV_LENS), SHARED))

    assert_close(out, expected_attention(case)[0])


@pytest.mark.parametrize(
    "options",
    [
        {"num_prefix_splits": 1, "num_splits": 1},
        {"num_prefix_splits": 7, "num_splits": 1, "split_tokens": None},
        {"num_prefix_splits": 5, "num_splits": 3},
        {"logit_cap": 3.0},
    ],
)
def test_splits_and_cap_equal_the_reference(options: dict[str, Any]) -> None:
    case = paged_case(KV_LENS, shared_prefixes=SHARED)

    out = run_cascade(case, prefix_groups(len(KV_LENS), SHARED), **options)

    assert_close(out, expected_attention(case, logit_cap=options.get("logit_cap", 0.0))[0])


def test_pages_and_fp8_equal_the_reference() -> None:
    case = paged_case(
        (130, 100), kv_dtype=torch.float8_e4m3fn, page_size=16, shared_prefixes=(((1, 0), 96),)
    )

    out = run_cascade(
        case, prefix_groups(2, (((1, 0), 96),)), page_size=16, k_scale=0.5, v_scale=2.0
    )

    assert_close(out, expected_attention(case, k_scale=0.5, v_scale=2.0)[0])


def test_more_rows_in_a_group_than_a_tile_holds() -> None:
    shared = ((tuple(range(12)), 50),)
    case = paged_case([52] * 12, num_heads=4, num_kv_heads=1, shared_prefixes=shared)

    out = run_cascade(case, prefix_groups(12, shared), num_prefix_splits=1, num_splits=1)

    assert_close(out, expected_attention(case)[0])


def test_groups_without_rows_are_padding_and_rows_that_share_nothing_one_group() -> None:
    lens = (*KV_LENS, 1, 1)  # as padded for a captured step
    case = paged_case(lens, shared_prefixes=SHARED)
    groups = prefix_groups(len(lens), (*SHARED, ((3, 6, 7), 0)))
    padding = torch.full((4,), len(lens), dtype=torch.int32)
    padded = PrefixGroups(
        groups.rows, guarded(torch.cat([groups.cu_rows, padding])), groups.prefix_lens
    )

    assert_close(run_cascade(case, padded), expected_attention(case)[0])
