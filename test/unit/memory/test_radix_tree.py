"""RadixTree: splitting, locking, eviction, and work that does not grow with the tree."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from numpy.typing import NDArray
from support.lines_run import lines_run

from runtime.srt.memory import path_walk
from runtime.srt.memory.radix_tree import RadixTree
from runtime.srt.memory.tree_checks import check_tree


class Harness:
    """A tree whose slots are 100 + position in one sequence, 200 + in the next, and so on."""

    def __init__(self, page_size: int = 1) -> None:
        self.freed: list[int] = []
        self.tree = RadixTree(page_size, lambda slots: self.freed.extend(slots.tolist()))
        self._next_slot = 100

    def insert(self, tokens: list[int], namespace: str | None = None) -> list[int]:
        slots = list(range(self._next_slot, self._next_slot + len(tokens)))
        self._next_slot += 100
        self.tree.insert(array(tokens), array(slots), namespace)
        check_tree(self.tree)
        return slots


def array(values: list[int]) -> NDArray[np.int32]:
    return np.array(values, dtype=np.int32)


def test_match_inside_a_span_splits_it_and_returns_its_slots() -> None:
    harness = Harness()
    harness.insert([1, 2, 3, 4])

    match = harness.tree.match_prefix(array([1, 2, 9]))

    assert match.num_tokens == 2
    assert match.slots().tolist() == [100, 101]
    assert harness.tree.num_nodes == 2
    check_tree(harness.tree)


def test_peek_finds_the_same_length_and_splits_nothing() -> None:
    harness = Harness(page_size=2)
    harness.insert([1, 2, 3, 4, 5, 6])

    assert harness.tree.peek_prefix_length(array([1, 2, 3, 4, 5, 9, 9])) == 4
    assert harness.tree.peek_prefix_length(array([1, 9])) == 0
    assert harness.tree.num_nodes == 1


def test_only_whole_pages_match() -> None:
    harness = Harness(page_size=4)
    harness.insert([1, 2, 3, 4, 5, 6, 7, 8])

    assert harness.tree.match_prefix(array([1, 2, 3, 4, 5, 6, 7])).num_tokens == 4
    assert harness.tree.match_prefix(array([1, 2, 3])).num_tokens == 0


def test_insert_keeps_the_old_slots_and_reports_the_duplicates() -> None:
    harness = Harness()
    harness.insert([1, 2, 3])

    result = harness.tree.insert(array([1, 2, 7, 8]), array([40, 41, 42, 43]))

    assert result.num_already_cached == 2
    assert harness.tree.match_prefix(array([1, 2, 7, 8])).slots().tolist() == [100, 101, 42, 43]
    assert harness.freed == []


def test_inserted_slots_are_copied() -> None:
    harness = Harness()
    slots = array([5, 6, 7])
    harness.tree.insert(array([1, 2, 3]), slots)

    slots[:] = 0

    assert harness.tree.match_prefix(array([1, 2, 3])).slots().tolist() == [5, 6, 7]


@pytest.mark.parametrize("other", ["", "b", "\ud800", "/a"])
def test_namespaces_never_share(other: str) -> None:
    harness = Harness()
    harness.insert([1, 2, 3], namespace=None)
    harness.insert([1, 2, 3], namespace="a")

    assert harness.tree.match_prefix(array([1, 2, 3]), other).num_tokens == 0
    harness.insert([1, 2, 3], namespace=other)

    assert harness.tree.match_prefix(array([1, 2, 3]), other).slots().tolist() == [300, 301, 302]
    assert harness.tree.match_prefix(array([1, 2, 3]), None).slots().tolist() == [100, 101, 102]


def test_eviction_takes_the_least_recently_used_first() -> None:
    harness = Harness()
    harness.insert([1, 1])
    harness.insert([2, 2])
    harness.insert([3, 3])
    harness.tree.match_prefix(array([1, 1]))

    harness.tree.evict(2)

    assert sorted(harness.freed) == [200, 201]


def test_eviction_cuts_a_long_leaf_from_its_tail() -> None:
    harness = Harness(page_size=2)
    harness.insert([1, 2, 3, 4, 5, 6, 7, 8])

    assert harness.tree.evict(3) == 4

    assert sorted(harness.freed) == [104, 105, 106, 107]
    assert harness.tree.match_prefix(array([1, 2, 3, 4, 5, 6, 7, 8])).num_tokens == 4
    check_tree(harness.tree)


def test_cut_leaf_can_grow_again_with_other_tokens() -> None:
    harness = Harness()
    harness.insert([1, 2, 3, 4, 5, 6, 7, 8])
    harness.tree.evict(2)

    harness.insert([1, 2, 3, 4, 5, 6, 9])

    assert harness.tree.match_prefix(array([1, 2, 3, 4, 5, 6, 7])).num_tokens == 6
    assert harness.tree.match_prefix(array([1, 2, 3, 4, 5, 6, 9])).num_tokens == 7


def test_eviction_never_frees_a_locked_prefix() -> None:
    harness = Harness()
    locked = harness.insert([1, 2, 3, 4])[:2]
    harness.insert([5, 6])
    match = harness.tree.match_prefix(array([1, 2]))
    harness.tree.lock(match.node)

    assert harness.tree.evict(1_000) == 4

    assert not set(harness.freed) & set(locked)
    assert match.slots().tolist() == locked
    assert (harness.tree.evictable_tokens, harness.tree.protected_tokens) == (0, 2)


def test_lock_survives_a_split_above_it() -> None:
    harness = Harness()
    harness.insert([1, 2, 3, 4])
    match = harness.tree.match_prefix(array([1, 2, 3, 4]))
    harness.tree.lock(match.node)
    harness.insert([1, 2, 9])

    harness.tree.evict(1_000)

    assert match.slots().tolist() == [100, 101, 102, 103]
    harness.tree.unlock(match.node)
    assert harness.tree.evict(1_000) == 4


def test_time_under_lock_counts_as_use() -> None:
    harness = Harness()
    harness.insert([1, 1])
    node = harness.tree.match_prefix(array([1, 1])).node
    harness.tree.lock(node)
    harness.insert([2, 2])
    harness.tree.unlock(node)

    harness.tree.evict(2)

    assert sorted(harness.freed) == [200, 201]


def test_unlock_without_lock_is_refused() -> None:
    harness = Harness()
    harness.insert([1, 2])

    with pytest.raises(AssertionError, match="lock count 0"):
        harness.tree.unlock(harness.tree.match_prefix(array([1, 2])).node)


def test_flush_frees_everything_once_and_the_tree_goes_on() -> None:
    harness = Harness()
    harness.insert([1, 2, 3])
    harness.tree.insert(array([1, 2, 9]), array([0, 0, 50]))

    harness.tree.flush()

    assert sorted(harness.freed) == [50, 100, 101, 102]
    assert harness.tree.total_tokens == harness.tree.num_nodes == 0
    harness.insert([1, 2, 3])
    assert harness.tree.match_prefix(array([1, 2, 3])).num_tokens == 3


def test_flush_under_a_lock_is_refused() -> None:
    harness = Harness()
    harness.insert([1, 2, 3])
    harness.tree.lock(harness.tree.match_prefix(array([1])).node)

    with pytest.raises(AssertionError, match="1 tokens locked, 2 evictable"):
        harness.tree.flush()


def test_paths_deeper_than_the_recursion_limit_work() -> None:
    depth = 3 * sys.getrecursionlimit()
    tokens = np.arange(depth, dtype=np.int32)
    harness = Harness()
    for end in range(1, depth + 1):  # each insert adds one node below the last
        harness.tree.insert(tokens[:end], tokens[:end])
    match = harness.tree.match_prefix(tokens)
    harness.tree.lock(match.node)
    harness.tree.unlock(match.node)
    check_tree(harness.tree)
    assert harness.tree.num_nodes == match.num_tokens == depth

    harness.tree.evict(depth // 2)
    harness.tree.flush()

    assert sorted(harness.freed) == list(range(depth))


def test_path_with_skips_that_is_cut_and_grows_again_stays_right(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(path_walk, "SKIP_NODES", 2)
    harness = Harness()
    tokens = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]
    slots = harness.insert(tokens)
    for end in (4, 6):  # nodes of four and two tokens, and a last one of six
        harness.tree.match_prefix(array(tokens[:end]))
    harness.insert([*tokens, 13])
    harness.tree.match_prefix(array(tokens))
    assert any(node.skip_up for node in harness.tree.nodes() if node.num_tokens == 6)

    for num_left in (12, 11, 8, 7):
        harness.tree.evict(harness.tree.total_tokens - num_left)
        check_tree(harness.tree)
        match = harness.tree.match_prefix(array([*tokens, 13]))
        assert match.num_tokens == num_left
        assert match.slots().tolist() == slots[:num_left]
    harness.insert([*tokens[:8], 77])

    assert harness.tree.match_prefix(array(tokens)).num_tokens == 8
    assert harness.tree.match_prefix(array([*tokens[:8], 77])).num_tokens == 9


def test_cutting_a_long_leaf_bit_by_bit_seldom_copies_it() -> None:
    harness = Harness()
    tokens = np.arange(16_384, dtype=np.int32)
    leaf = harness.tree.insert(tokens, tokens).node
    num_copies, span = 0, leaf.span

    while harness.tree.evictable_tokens > 1:
        harness.tree.evict(1)
        num_copies += leaf.span is not span
        span = leaf.span

    assert num_copies <= 14  # log2 of the length


def _work_in_tree_of(num_leaves: int) -> dict[str, int]:
    """Count the lines each operation runs in a tree of num_leaves leaves under two shared texts."""
    harness = Harness()
    for number in range(num_leaves):
        tokens = [number % 2, 7, 7, 7, 1_000 + number, 5, 5, 5]
        harness.tree.insert(array(tokens), array(tokens))
    # All leaves are used once more, so that an order with stale entries would have to repair them.
    for number in range(num_leaves):
        harness.tree.match_prefix(array([number % 2, 7, 7, 7, 1_000 + number, 5, 5, 5]))
    tree, known = harness.tree, array([0, 7, 7, 7, 1_000, 5, 5, 5])
    new = array([0, 7, 7, 7, 1, 2, 3, 4])
    node = tree.match_prefix(known).node
    return {
        "match": lines_run(lambda: tree.match_prefix(known)),
        "lock": lines_run(lambda: tree.lock(node)),
        "unlock": lines_run(lambda: tree.unlock(node)),
        "insert": lines_run(lambda: tree.insert(new, new)),
        "evict": lines_run(lambda: tree.evict(32)),
    }


def test_no_operation_works_more_in_a_tree_with_more_leaves() -> None:
    assert _work_in_tree_of(20) == _work_in_tree_of(2_000)
