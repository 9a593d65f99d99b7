"""KvMemory: the life of a lease and the account of every slot."""

from __future__ import annotations

import numpy as np
import pytest

from runtime.srt.memory.kv_memory import KvLease, KvMemory
from runtime.srt.memory.memory_checks import check_memory
from runtime.srt.messages import KvStats


def make_memory(
    total_tokens: int = 16, page_size: int = 1, num_rows: int = 4, enable_cache: bool = True
) -> KvMemory:
    return KvMemory(total_tokens, page_size, num_rows, max_context=64, enable_cache=enable_cache)


def run(memory: KvMemory, tokens: list[int], namespace: str | None = None) -> KvLease:
    """Open a lease for tokens and compute them all."""
    lease = memory.open(tokens, namespace, len(tokens) - 1)
    assert lease is not None
    assert memory.grow(lease, len(tokens))
    return lease


def run_and_close(memory: KvMemory, tokens: list[int], namespace: str | None = None) -> None:
    memory.close(run(memory, tokens, namespace), tokens, len(tokens))


def test_closed_lease_leaves_its_tokens_evictable() -> None:
    memory = make_memory()

    run_and_close(memory, [1, 2, 3, 4])

    assert memory.stats() == KvStats(total=16, available=12, evictable=4, protected=0, held=0)


def test_open_finds_and_locks_the_cached_prefix_up_to_the_limit() -> None:
    memory = make_memory()
    run_and_close(memory, [1, 2, 3, 4])

    lease = memory.open([1, 2, 3, 4], None, match_limit=3)

    assert lease is not None
    assert (lease.num_matched, lease.num_allocated, lease.num_tree_owned) == (3, 3, 3)
    assert memory.stats() == KvStats(total=16, available=12, evictable=1, protected=3, held=0)
    assert memory.slots(lease, 0, 3).tolist() == [1, 2, 3]


def test_open_without_a_free_row_is_none_and_changes_nothing() -> None:
    memory = make_memory(num_rows=1)
    run(memory, [1, 2])
    before = memory.stats()

    assert memory.open([1, 2], None, 1) is None
    assert memory.stats() == before


def test_namespaces_do_not_share() -> None:
    memory = make_memory()
    run_and_close(memory, [1, 2, 3], "a")

    assert memory.peek_prefix_length([1, 2, 3], "b") == 0
    assert memory.peek_prefix_length([1, 2, 3], None) == 0
    assert memory.peek_prefix_length([1, 2, 3], "a") == 3


def test_peek_changes_neither_tree_nor_order() -> None:
    memory = make_memory(total_tokens=6)
    run_and_close(memory, [1, 1, 1])
    run_and_close(memory, [2, 2, 2])
    memory.peek_prefix_length(np.array([1, 1], dtype=np.int32), None)

    lease = memory.open([3, 3], None, 1)
    assert lease is not None and memory.grow(lease, 3)

    assert memory.peek_prefix_length([1, 1, 1], None) == 0
    assert memory.peek_prefix_length([2, 2, 2], None) == 3


def test_grow_evicts_what_is_missing_and_no_more() -> None:
    memory = make_memory(total_tokens=8)
    run_and_close(memory, [1, 2, 3, 4, 5, 6])
    lease = memory.open([9], None, 0)
    assert lease is not None

    assert memory.grow(lease, 4)

    assert memory.stats() == KvStats(total=8, available=0, evictable=4, protected=0, held=4)
    assert memory.evicted_tokens_total == 2
    assert memory.peek_prefix_length([1, 2, 3, 4, 5, 6], None) == 4


def test_impossible_grow_changes_nothing() -> None:
    memory = make_memory(total_tokens=8)
    run_and_close(memory, [1, 2, 3])
    lease = memory.open([9], None, 0)
    assert lease is not None
    before = memory.stats()

    assert not memory.grow(lease, 9)

    assert memory.stats() == before
    assert lease.num_allocated == 0


@pytest.mark.parametrize("page_size", [1, 4])
def test_grow_many_is_all_or_nothing(page_size: int) -> None:
    memory = make_memory(total_tokens=12, page_size=page_size)
    leases = [memory.open([7], None, 0) for _ in range(3)]
    opened = [lease for lease in leases if lease is not None]

    assert memory.grow_many(opened, [4, 4, 4])
    assert not memory.grow_many(opened, [4, 5, 5])

    assert [lease.num_allocated for lease in opened] == [4, 4, 4]
    assert memory.available_tokens == 0
    slots = np.concatenate([memory.slots(lease, 0, 4) for lease in opened])
    assert len(set(slots.tolist())) == 12


def test_decode_of_many_leases_gives_each_its_own_next_slot() -> None:
    memory = make_memory()
    leases = [run(memory, [number, number]) for number in range(3)]

    assert memory.grow_many(leases, [3, 3, 2])

    assert [lease.num_allocated for lease in leases] == [3, 3, 2]
    check_memory(memory)


def test_prompt_computed_twice_at_once_is_kept_once() -> None:
    memory = make_memory()
    first, second = run(memory, [1, 2, 3, 4]), run(memory, [1, 2, 3, 4])
    assert memory.held_tokens == 8

    memory.commit(first, [1, 2, 3, 4], 4)
    memory.commit(second, [1, 2, 3, 4], 4)

    assert memory.stats() == KvStats(total=16, available=12, evictable=0, protected=4, held=0)
    assert memory.slots(second, 0, 4).tolist() == memory.slots(first, 0, 4).tolist()
    check_memory(memory)
    memory.close(first, [1, 2, 3, 4], 4)
    assert memory.protected_tokens == 4
    memory.close(second, [1, 2, 3, 4], 4)
    assert memory.stats() == KvStats(total=16, available=12, evictable=4, protected=0, held=0)


def test_commit_twice_is_the_same_as_once() -> None:
    memory = make_memory()
    lease = run(memory, [1, 2, 3])

    memory.commit(lease, [1, 2, 3], 3)
    memory.commit(lease, [1, 2, 3], 3)

    assert memory.protected_tokens == lease.num_tree_owned == 3
    check_memory(memory)


def test_partial_page_stays_private_until_it_is_full() -> None:
    memory = make_memory(page_size=4)
    lease = run(memory, [1, 2, 3, 4, 5])

    memory.commit(lease, [1, 2, 3, 4, 5], 5)

    assert (lease.num_tree_owned, lease.num_allocated) == (4, 8)
    assert memory.stats() == KvStats(total=16, available=8, evictable=0, protected=4, held=4)
    memory.close(lease, [1, 2, 3, 4, 5], 5)
    assert memory.stats() == KvStats(total=16, available=12, evictable=4, protected=0, held=0)


def test_close_before_all_is_computed_keeps_only_what_is_valid() -> None:
    memory = make_memory()
    lease = run(memory, [1, 2, 3, 4, 5, 6])

    memory.close(lease, [1, 2, 3, 4, 5, 6], num_computed=2)

    assert memory.peek_prefix_length([1, 2, 3, 4], None) == 2
    assert memory.stats() == KvStats(total=16, available=14, evictable=2, protected=0, held=0)


def test_commit_reads_only_what_the_tree_does_not_own() -> None:
    class Recorder(list[int]):
        reads: list[slice]

        def __getitem__(self, at):  # type: ignore[no-untyped-def]  # overloads of list
            self.reads.append(at)
            return super().__getitem__(at)

    memory = make_memory()
    tokens = Recorder([1, 2, 3, 4, 5, 6])
    tokens.reads = []
    lease = run(memory, list(tokens))
    memory.commit(lease, tokens, 4)

    memory.commit(lease, tokens, 6)

    assert tokens.reads == [slice(0, 4), slice(4, 6)]


def test_more_computed_than_allocated_is_refused() -> None:
    memory = make_memory()
    lease = run(memory, [1, 2, 3])

    with pytest.raises(AssertionError, match="4 tokens computed, 3 allocated"):
        memory.commit(lease, [1, 2, 3, 4], 4)


def test_closing_twice_is_refused() -> None:
    memory = make_memory()
    lease = run(memory, [1, 2, 3])
    memory.close(lease, [1, 2, 3], 3)

    with pytest.raises(AssertionError, match="closed lease"):
        memory.close(lease, [1, 2, 3], 3)


def test_flush_waits_for_open_leases() -> None:
    memory = make_memory()
    lease = run(memory, [1, 2, 3])

    assert not memory.flush()
    memory.close(lease, [1, 2, 3], 3)
    assert memory.flush()

    assert memory.available_tokens == 16


def test_without_cache_a_closed_lease_frees_everything() -> None:
    memory = make_memory(enable_cache=False)

    run_and_close(memory, [1, 2, 3])

    assert memory.available_tokens == 16
    assert memory.peek_prefix_length([1, 2, 3], None) == 0


def test_lost_slot_is_reported_with_the_figures() -> None:
    memory = make_memory()
    memory.allocator.allocate(1)

    with pytest.raises(AssertionError, match="available 15 .* = 15, not 16"):
        memory.check_identity()
