"""Token spans: comparison and conversion."""

from __future__ import annotations

import numpy as np
import pytest

from runtime.srt.memory.token_span import as_token_array, common_prefix_bytes


@pytest.mark.parametrize("shared", [0, 1, 63, 64, 65, 575, 576, 577, 4_671, 4_672, 6_000])
@pytest.mark.parametrize("offset", [0, 3])
def test_shared_length_is_found_on_both_sides_of_each_window(shared: int, offset: int) -> None:
    tokens = np.arange(6_000, dtype=np.int32)
    other = tokens.copy()
    other[shared:] += 1
    query = np.concatenate([np.full(offset, 7, dtype=np.int32), other])

    found = common_prefix_bytes(tokens.tobytes(), query.tobytes(), offset * 4)

    assert found == shared * 4


def test_tokens_that_differ_in_a_high_byte_only_differ() -> None:
    left = np.array([1, 2], dtype=np.int32)
    right = np.array([1, 2 + (1 << 24)], dtype=np.int32)

    assert common_prefix_bytes(left.tobytes(), right.tobytes(), 0) == 4


def test_shorter_query_ends_the_comparison() -> None:
    span = np.arange(10, dtype=np.int32).tobytes()
    query = np.arange(4, dtype=np.int32).tobytes()

    assert common_prefix_bytes(span, query, 0) == 16
    assert common_prefix_bytes(span, query, 16) == 0


@pytest.mark.parametrize("kind", [list, tuple, lambda ids: np.array(ids, dtype=np.int32)])
def test_any_sequence_of_ids_becomes_int32(kind: type) -> None:
    tokens = as_token_array(kind([5, 6, 7, 8]), 1, 3)

    assert tokens.dtype == np.int32
    assert tokens.tolist() == [6, 7]
    assert as_token_array(kind([5]), 1, 1).tolist() == []


def test_int32_array_is_not_copied() -> None:
    ids = np.arange(100, dtype=np.int32)

    assert np.shares_memory(as_token_array(ids, 10, 90), ids)
