"""Which step is padded to which captured size."""

from __future__ import annotations

import pytest

from runtime.srt.execution.graph_buckets import bucket_for, bucket_sizes, shared_bucket_sizes


def test_sizes_are_close_together_where_steps_are_small() -> None:
    sizes = bucket_sizes(320)

    assert sizes[:6] == [1, 2, 4, 8, 16, 24]
    assert sizes[-6:] == [248, 256, 272, 288, 304, 320]


@pytest.mark.parametrize("max_rows", [1, 2, 3, 7, 8, 9, 100, 255, 256, 257, 300])
def test_the_largest_size_is_the_one_asked_for(max_rows: int) -> None:
    sizes = bucket_sizes(max_rows)

    assert sizes[-1] == max_rows
    assert sizes == sorted(set(sizes))


@pytest.mark.parametrize(
    ("num_rows", "expected"), [(1, 1), (3, 4), (5, 8), (8, 8), (9, 16), (20, 20), (21, None)]
)
def test_a_step_is_padded_to_the_next_size(num_rows: int, expected: int | None) -> None:
    assert bucket_for(num_rows, bucket_sizes(20)) == expected


@pytest.mark.parametrize(
    ("max_rows", "expected"),
    [(1, []), (2, [2]), (8, [8]), (9, [8, 9]), (64, [8, 16, 32, 64]), (100, [8, 16, 32, 64, 100])],
)
def test_steps_that_share_prefixes_have_few_sizes(max_rows: int, expected: list[int]) -> None:
    assert shared_bucket_sizes(max_rows) == expected
