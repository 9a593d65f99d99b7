"""PrefixWatch: who is told, when, and of what."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from support.lines_run import lines_run

from runtime.srt.memory.kv_memory import KvLease, KvMemory
from runtime.srt.memory.prefix_watch import PrefixWatch


def array(tokens: list[int]) -> NDArray[np.int32]:
    return np.array(tokens, dtype=np.int32)


class Told:
    """Remembers which watches were told."""

    def __init__(self) -> None:
        self.watches: list[PrefixWatch] = []

    def __call__(self, watch: PrefixWatch) -> None:
        self.watches.append(watch)


def start(memory: KvMemory, tokens: list[int], num_computed: int) -> KvLease:
    lease = memory.open(tokens, None, len(tokens) - 1)
    assert lease is not None and memory.grow(lease, num_computed)
    memory.commit(lease, tokens, num_computed)
    return lease


def watch(memory: KvMemory, tokens: list[int], told: Told) -> PrefixWatch:
    return memory.watch(array(tokens), None, len(tokens) - 1, told)


def test_watch_follows_a_prompt_while_it_is_computed() -> None:
    memory, told = KvMemory(32, 1, 4, 32), Told()
    tokens = [1, 2, 3, 4, 5, 6]
    waiting = watch(memory, tokens, told)

    lease = start(memory, tokens, 2)
    assert waiting.num_matched == 2
    assert waiting.group == memory.group_of(lease, tokens)
    assert memory.grow(lease, 6)
    memory.close(lease, tokens, 6)

    assert (waiting.num_matched, waiting.group) == (5, None)  # all below its limit
    assert told.watches == [waiting, waiting]


def test_only_watches_under_the_new_page_are_told() -> None:
    memory, told = KvMemory(32, 1, 4, 32), Told()
    start(memory, [1, 2], 2)
    touched = watch(memory, [1, 2, 3, 9], told)
    other = watch(memory, [1, 2, 4, 9], told)

    start(memory, [1, 2, 3], 3)

    assert told.watches == [touched]
    assert (touched.num_matched, other.num_matched) == (3, 2)


def test_groups_are_shared_by_those_whose_next_page_is_the_same() -> None:
    memory, told = KvMemory(32, 2, 4, 32), Told()
    first, second, other = (
        watch(memory, tokens, told) for tokens in ([1, 2, 3, 4, 5], [1, 2, 9, 9, 9], [1, 3, 5, 7])
    )

    assert first.group == second.group != other.group
    start(memory, [1, 2], 2)

    assert len({first.group, second.group, other.group}) == 3


def test_eviction_moves_the_watches_of_what_it_takes() -> None:
    memory, told = KvMemory(8, 1, 4, 32), Told()
    memory.close(start(memory, [1, 2, 3, 4, 5, 6], 6), [1, 2, 3, 4, 5, 6], 6)
    waiting = watch(memory, [1, 2, 3, 4, 5, 6, 7, 8], told)
    short = watch(memory, [1, 2, 3, 9], told)
    assert (waiting.num_matched, short.num_matched) == (6, 3)

    lease = start(memory, [7, 7, 7, 7], 4)
    assert (waiting.num_matched, short.num_matched) == (4, 3)
    assert memory.grow(lease, 6)

    assert (waiting.num_matched, short.num_matched) == (2, 2)
    assert waiting.group == short.group
    assert told.watches[0] is waiting and set(told.watches[1:]) == {waiting, short}


def test_a_watch_removed_by_anothers_callback_is_not_called() -> None:
    memory, told = KvMemory(32, 1, 4, 32), Told()
    watches: list[PrefixWatch] = []

    def remove_the_other(watch: PrefixWatch) -> None:
        told(watch)
        memory.unwatch(watches[1 - watches.index(watch)])

    watches += [memory.watch(array([1, 2, 3]), None, 3, remove_the_other) for _ in range(2)]
    start(memory, [1, 2, 3], 2)

    assert told.watches == [watches[0]]


def test_callback_may_open_the_watched_prompt() -> None:
    memory = KvMemory(32, 1, 4, 32)
    opened: list[KvLease] = []

    def open_it(watch: PrefixWatch) -> None:
        memory.unwatch(watch)
        lease = memory.open([1, 2, 3, 4], None, 4)
        assert lease is not None
        opened.append(lease)

    memory.watch(array([1, 2, 3, 4]), None, 3, open_it)
    lease = start(memory, [1, 2, 3, 4], 4)

    assert [o.num_matched for o in opened] == [4]
    assert memory.slots(opened[0], 0, 4).tolist() == memory.slots(lease, 0, 4).tolist()


def test_without_cache_a_watch_stays_at_nothing() -> None:
    memory, told = KvMemory(32, 1, 4, 32, enable_cache=False), Told()
    waiting = watch(memory, [1, 2, 3], told)

    lease = start(memory, [1, 2, 3], 3)
    memory.close(lease, [1, 2, 3], 3)

    assert (waiting.num_matched, waiting.group) == (0, None)
    assert memory.group_of(lease, [1, 2, 3]) is None
    assert told.watches == []


def _work_with_watches(num_others: int) -> dict[str, int]:
    """Count the lines of operations that concern one watch while num_others wait elsewhere."""
    memory, told = KvMemory(32, 1, 4, 32), Told()
    start(memory, [1, 2], 2)
    for number in range(num_others):
        watch(memory, [1, 2, 100 + number, 9], told)  # at the same node, under other pages
        watch(memory, [100 + number, 2, 3], told)
    prompt = [1, 2, 3, 4]
    lease = memory.open(prompt, None, 3)
    assert lease is not None and memory.grow(lease, 4)
    work = {
        "watch": lines_run(lambda: watch(memory, prompt, told)),
        "commit": lines_run(lambda: memory.commit(lease, prompt, 4)),
    }
    memory.close(lease, prompt, 4)
    flood = memory.open([7], None, 0)
    assert flood is not None
    work["evict"] = lines_run(lambda: memory.grow(flood, 30))
    assert len(told.watches) == 2
    return work


def test_no_operation_works_more_when_others_wait_elsewhere() -> None:
    assert _work_with_watches(3) == _work_with_watches(1_000)
