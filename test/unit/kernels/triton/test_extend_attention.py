"""Ragged causal attention over cached and new keys against float64, interpreted."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
import torch
from support.guarded_tensors import GuardedOutput, same_bits
from support.paged_attention_cases import PagedCase, assert_close, expected_attention, paged_case

from runtime.kernels.triton import extend_attention as extend_module
from runtime.kernels.triton import launch_table
from runtime.kernels.triton.extend_attention import extend_attention, supports_head_dim

# (kv_lens, query_lens): without and with a prefix, one token, none, across blocks of 32 to 128.
RAGGED = ((1, 5, 130, 64, 40, 33), (1, 5, 3, 64, 0, 1))


def run_extend(case: PagedCase, **options: Any) -> torch.Tensor:
    out = GuardedOutput.empty(tuple(case.q.shape), case.q.dtype)
    query_lens = case.cu_query_lens.diff()
    extend_attention(
        case.q,
        case.k_pool,
        case.v_pool,
        case.slot_table,
        case.table_rows,
        case.cu_query_lens,
        case.kv_lens,
        out.tensor,
        max_query_len=int(query_lens.max()) if query_lens.numel() else 0,
        scale=case.scale,
        **options,
    )
    out.assert_guards_hold()
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
    case = paged_case(*RAGGED, head_dim=head_dim, dtype=dtype)

    out = run_extend(case)

    assert_close(out, expected_attention(case)[0])


@pytest.mark.parametrize("heads", [(1, 1), (9, 3), (8, 2), (8, 1)])
def test_every_ratio_of_query_to_kv_heads_equals_the_reference(heads: tuple[int, int]) -> None:
    case = paged_case((70, 20), (45, 2), num_heads=heads[0], num_kv_heads=heads[1])

    out = run_extend(case)

    assert_close(out, expected_attention(case)[0])


@pytest.mark.parametrize(
    "options",
    [
        {"window": 1},
        {"page_size": 4, "window": 64},
        {"logit_cap": 2.0, "window": 1000},
        {"logit_cap": 30.0, "window": 33},
        {"page_size": 16, "window": 130},
        {"page_size": 64, "logit_cap": 5.0},
    ],
)
def test_window_cap_and_pages_equal_the_reference(options: dict[str, Any]) -> None:
    options = dict(options)
    page_size = options.get("page_size", 1)
    # float16 has the tiles of bfloat16; those of float32 are small.
    case = paged_case((290, 60, 40), (50, 60, 1), dtype=torch.float16, page_size=page_size)

    out = run_extend(case, **options)

    options.pop("page_size", None)
    assert_close(out, expected_attention(case, **options)[0])


# Capability 80 has no fp8 type: there the kernel takes the bytes apart.
@pytest.mark.parametrize("capability", [80, 90])
def test_fp8_pool_with_scales_equals_the_reference(capability: int) -> None:
    case = paged_case((70, 9), (30, 9), dtype=torch.float16, kv_dtype=torch.float8_e4m3fn)
    scales = {"k_scale": 0.5, "v_scale": 0.25}

    with mock.patch.object(launch_table, "capability", return_value=capability):
        out = run_extend(case, **scales)

    assert_close(out, expected_attention(case, **scales)[0])


@pytest.mark.parametrize("capability", [80, 100])
def test_tiles_of_other_gpus_equal_the_reference(capability: int) -> None:
    case = paged_case(*RAGGED, dtype=torch.float16)

    with mock.patch.object(launch_table, "capability", return_value=capability):
        out = run_extend(case)

    assert_close(out, expected_attention(case)[0])


def test_more_rows_than_one_search_step_find_their_tiles() -> None:
    case = paged_case([3] * 10, [1, 3, 2, 0, 0, 1, 3, 0, 1, 1], num_heads=1, num_kv_heads=1)

    with mock.patch.object(extend_module, "_ROWS_PER_SEARCH_STEP", 4):
        out = run_extend(case)

    assert_close(out, expected_attention(case)[0])


def test_bits_of_a_token_do_not_depend_on_the_batch() -> None:
    case = paged_case((50, 140), (50, 40), num_heads=2, num_kv_heads=1, dtype=torch.float16)
    together = run_extend(case)

    for row in range(2):
        begin, end = case.cu_query_lens[row : row + 2].tolist()
        alone = PagedCase(
            case.q[begin:end],
            case.k_pool,
            case.v_pool,
            case.slot_table,
            case.table_rows[row : row + 1],
            torch.tensor([0, end - begin], dtype=torch.int32),
            case.kv_lens[row : row + 1],
            case.slots[row : row + 1],
        )
        assert same_bits(run_extend(alone), together[begin:end])


def test_an_empty_batch_launches_nothing() -> None:
    assert run_extend(paged_case(())).shape == (0, 4, 64)


def test_supported_head_dims_are_sums_of_at_most_two_powers_of_two() -> None:
    supported = [head_dim for head_dim in range(1, 600) if supports_head_dim(head_dim)]

    assert supported == [16, 32, 48, 64, 80, 96, 128, 144, 160, 192, 256]
