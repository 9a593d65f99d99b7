"""Paged split decode attention against float64, interpreted."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
import torch
from support.guarded_tensors import GuardedOutput, same_bits
from support.paged_attention_cases import PagedCase, assert_close, expected_attention, paged_case

from runtime.kernels.triton import launch_table
from runtime.kernels.triton.decode_attention import choose_num_splits, decode_attention
from runtime.kernels.triton.merge_states import workspace_floats

# Around the blocks of 32, 64 and 128 keys that the launch table has, and no key at all.
LENGTHS = (0, 64, 65, 150)


def run_decode(
    case: PagedCase, num_splits: int = 2, split_tokens: int | None = 32, **options: Any
) -> torch.Tensor:
    out = GuardedOutput.empty(tuple(case.q.shape), case.q.dtype)
    num_rows, num_heads, head_dim = case.q.shape
    size = workspace_floats(num_rows, num_heads, num_splits, head_dim)
    workspace = GuardedOutput.empty((size,), torch.float32)
    decode_attention(
        case.q,
        case.k_pool,
        case.v_pool,
        case.slot_table,
        case.table_rows,
        case.kv_lens,
        out.tensor,
        workspace.tensor,
        scale=case.scale,
        num_splits=num_splits,
        split_tokens=split_tokens,
        **options,
    )
    out.assert_guards_hold()
    workspace.assert_guards_hold()
    return out.tensor


@pytest.mark.parametrize(
    ("head_dim", "dtype"),
    [
        (64, torch.float32),
        (80, torch.float32),
        *((head_dim, torch.float16) for head_dim in (64, 80, 96, 128, 256)),
    ],
)
def test_every_head_dim_equals_the_reference(head_dim: int, dtype: torch.dtype) -> None:
    case = paged_case(LENGTHS, head_dim=head_dim, dtype=dtype)

    out = run_decode(case)

    assert_close(out, expected_attention(case)[0])


@pytest.mark.parametrize("heads", [(3, 3), (9, 3), (8, 2), (8, 1), (17, 1), (70, 1)])
def test_every_ratio_of_query_to_kv_heads_equals_the_reference(heads: tuple[int, int]) -> None:
    case = paged_case((1, 70), num_heads=heads[0], num_kv_heads=heads[1])

    out = run_decode(case)

    assert_close(out, expected_attention(case)[0])


@pytest.mark.parametrize(
    ("num_splits", "split_tokens"), [(1, None), (2, 16), (5, None), (5, 40), (20, 16)]
)
def test_any_number_of_splits_equals_the_reference(
    num_splits: int, split_tokens: int | None
) -> None:
    case = paged_case((0, 1, 40, 170), num_heads=2, num_kv_heads=1)

    out = run_decode(case, num_splits, split_tokens)

    assert_close(out, expected_attention(case)[0])


@pytest.mark.parametrize(
    "options",
    [
        {"window": 1},
        {"page_size": 4, "window": 33},
        {"logit_cap": 2.0, "window": 1000},
        {"logit_cap": 30.0, "window": 64},
        {"page_size": 16, "window": 50},
        {"page_size": 64, "logit_cap": 5.0},
    ],
)
def test_window_cap_and_pages_equal_the_reference(options: dict[str, Any]) -> None:
    case = paged_case((1, 33, 150), page_size=options.get("page_size", 1))

    out = run_decode(case, **options)

    options.pop("page_size", None)
    assert_close(out, expected_attention(case, **options)[0])


@pytest.mark.parametrize("window", [0, 20])
def test_keys_before_kv_starts_do_not_count(window: int) -> None:
    case = paged_case((100, 100, 100, 7))
    starts = [50, 99, 100, 0]

    out = run_decode(case, kv_starts=torch.tensor(starts, dtype=torch.int32), window=window)

    assert_close(out, expected_attention(case, kv_starts=starts, window=window)[0])


@pytest.mark.parametrize("num_splits", [1, 2])
def test_log_sum_exp_equals_the_reference(num_splits: int) -> None:
    case = paged_case((0, 1, 90))
    lse = GuardedOutput.empty(tuple(case.q.shape[:2]), torch.float32)

    run_decode(case, num_splits, lse=lse.tensor)

    assert_close(lse.tensor, expected_attention(case)[1])
    lse.assert_guards_hold()


# Capability 80 has no fp8 type: there the kernel takes the bytes apart.
@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_fp8_pool_with_scales_equals_the_reference(capability: int, dtype: torch.dtype) -> None:
    case = paged_case((1, 70), dtype=dtype, kv_dtype=torch.float8_e4m3fn)
    scales = {"k_scale": 0.5, "v_scale": 0.25}

    with mock.patch.object(launch_table, "capability", return_value=capability):
        out = run_decode(case, **scales)

    assert_close(out, expected_attention(case, **scales)[0])


def test_queries_may_be_a_view_of_a_wider_matrix() -> None:
    case = paged_case((5, 60))
    num_rows, num_heads, head_dim = case.q.shape
    qkv = torch.full((num_rows, (num_heads + 4) * head_dim), torch.nan)
    q = qkv[:, : num_heads * head_dim].view(num_rows, num_heads, head_dim)
    q.copy_(case.q)
    out = torch.empty_like(case.q)

    decode_attention(
        q,
        case.k_pool,
        case.v_pool,
        case.slot_table,
        case.table_rows,
        case.kv_lens,
        out,
        torch.empty(0),
        scale=case.scale,
        num_splits=1,
    )

    assert_close(out, expected_attention(case)[0])


def test_bits_of_a_row_do_not_depend_on_the_batch_with_fixed_splits() -> None:
    case = paged_case((7, 150, 64), num_heads=2, num_kv_heads=1, dtype=torch.float16)
    together = run_decode(case, num_splits=5, split_tokens=32)

    for row in range(3):
        alone = PagedCase(
            case.q[row : row + 1],
            case.k_pool,
            case.v_pool,
            case.slot_table,
            case.table_rows[row : row + 1],
            case.cu_query_lens[:2],
            case.kv_lens[row : row + 1],
            case.slots[row : row + 1],
        )
        # More splits than needed are empty ones: a larger graph bucket changes no bit either.
        assert same_bits(run_decode(alone, num_splits=5, split_tokens=32), together[row : row + 1])
        assert same_bits(run_decode(alone, num_splits=8, split_tokens=32), together[row : row + 1])


def test_a_row_longer_than_all_fixed_splits_is_still_right() -> None:
    case = paged_case((300,))

    out = run_decode(case, num_splits=3, split_tokens=16)

    assert_close(out, expected_attention(case)[0])


def test_an_empty_batch_launches_nothing() -> None:
    case = paged_case(())

    assert run_decode(case).shape == (0, 4, 64)


def test_splits_fill_the_gpu_but_no_split_is_tiny() -> None:
    few_long_rows = choose_num_splits(1, 32, 8, 132, 131072)
    many_rows = choose_num_splits(256, 32, 8, 132, 131072)
    short_rows = choose_num_splits(1, 32, 8, 132, 500)

    assert few_long_rows * 8 >= 132
    assert many_rows == 1
    assert short_rows == 4


def test_a_workspace_too_small_is_named_with_both_sizes() -> None:
    case = paged_case((5,))

    with pytest.raises(AssertionError, match="workspace has 100 floats, needs 780"):
        decode_attention(
            case.q,
            case.k_pool,
            case.v_pool,
            case.slot_table,
            case.table_rows,
            case.kv_lens,
            torch.empty_like(case.q),
            torch.empty(100),
            scale=1.0,
            num_splits=3,
        )
