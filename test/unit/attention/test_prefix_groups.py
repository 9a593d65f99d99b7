"""Rows that share a long prefix are found by their slots."""

from __future__ import annotations

import numpy as np
import pytest
from support.steps import batch_of_rows

from runtime.srt.attention.prefix_groups import LEAST_SAVED_TOKENS, find_prefix_groups
from runtime.srt.execution.forward_batch import ForwardBatch


def _batch(shared: list[tuple[list[int], int]], kv_lens: list[int]) -> ForwardBatch:
    """Decode rows of kv_lens; rows of an entry of shared have as many slots in common."""
    batch = batch_of_rows([(1, kv_len) for kv_len in kv_lens])
    for rows, length in shared:
        for row in rows[1:]:
            batch.slot_table[1 + row, :length] = batch.slot_table[1 + rows[0], :length]
    return batch


def test_rows_of_one_prompt_are_one_group_as_long_as_what_they_share() -> None:
    batch = _batch([([0, 2, 3, 5], 1500)], [1600, 1600, 1507, 1502, 900, 3000])

    (group,) = find_prefix_groups(batch, 6)

    assert group.rows == (0, 2, 3, 5)
    assert group.num_tokens == 1500


def test_the_own_token_of_a_row_is_never_shared() -> None:
    batch = _batch([([0, 1, 2], 3000)], [3001, 3001, 3002])

    (group,) = find_prefix_groups(batch, 3)

    assert group.num_tokens == 3000


def test_two_prompts_make_two_groups() -> None:
    batch = _batch([([0, 1], 5000), ([2, 3, 4], 4000)], [5001, 5400, 4500, 4200, 4001])

    groups = find_prefix_groups(batch, 5)

    assert sorted((group.rows, group.num_tokens) for group in groups) == [
        ((0, 1), 5000),
        ((2, 3, 4), 4000),
    ]


def test_a_long_prefix_of_some_is_worth_more_than_a_short_one_of_all() -> None:
    # All share 300 tokens, three of them 6,000.
    batch = _batch([([0, 1, 2, 3, 4], 300), ([0, 1, 2], 6000)], [6001, 6010, 6020, 400, 400])

    (group,) = find_prefix_groups(batch, 5)

    assert (group.rows, group.num_tokens) == ((0, 1, 2), 6000)


@pytest.mark.parametrize("length", [0, 200, LEAST_SAVED_TOKENS - 1])
def test_little_sharing_is_not_worth_a_group(length: int) -> None:
    batch = _batch([([0, 1], length)], [LEAST_SAVED_TOKENS + 1] * 2)

    assert find_prefix_groups(batch, 2) == []


def test_only_the_rows_asked_for_count() -> None:
    batch = _batch([([0, 1, 2], 5000)], [5001] * 3)

    assert find_prefix_groups(batch, 1) == []
    assert find_prefix_groups(batch, 2)[0].rows == (0, 1)


@pytest.mark.parametrize("seed", range(20))
def test_groups_share_every_slot_that_they_claim_and_no_more(seed: int) -> None:
    rng = np.random.default_rng(seed)
    lens = rng.integers(600, 9000, 12).tolist()
    rows = rng.permutation(12)[:7].tolist()
    batch = _batch([(rows, int(rng.integers(500, 599)))], lens)

    for group in find_prefix_groups(batch, 12):
        table = batch.slot_table[batch.table_rows[list(group.rows)]]
        assert (table[:, : group.num_tokens] == table[0, : group.num_tokens]).all()
        assert not (table[:, group.num_tokens] == table[0, group.num_tokens]).all()
