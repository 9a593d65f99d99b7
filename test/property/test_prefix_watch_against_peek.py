"""Watches under random leases: always what a look-up from the root finds, and told exactly once."""

from __future__ import annotations

import random
from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray

from runtime.srt.memory.kv_memory import KvLease, KvMemory
from runtime.srt.memory.memory_checks import check_memory
from runtime.srt.memory.prefix_watch import PrefixWatch

NUM_OPERATIONS = 5_000
NAMESPACES = [None, "tenant"]

GroupMeaning = tuple[str | None, tuple[int, ...], tuple[int, ...]]


@dataclass
class Running:
    """An open lease and its sequence."""

    lease: KvLease
    tokens: NDArray[np.int32]
    namespace: str | None
    num_computed: int


class WatchRig:
    """KvMemory with leases and watches; what the callbacks told is compared with look-ups."""

    def __init__(self, page_size: int, policy: str, seed: int) -> None:
        self.random = random.Random(seed)
        self.page_size = page_size
        self.memory = KvMemory(
            30 * page_size, page_size, 5, max_context=20 * page_size, eviction_policy=policy
        )
        self.running: list[Running] = []
        self.limits: dict[PrefixWatch, tuple[NDArray[np.int32], int]] = {}
        self.told: dict[PrefixWatch, tuple[int, Hashable | None]] = {}
        self.told_now: list[PrefixWatch] = []
        self.num_told = 0

    def step(self) -> None:
        operations = [self.open, self.compute, self.commit, self.close, self.watch, self.unwatch]
        self.told_now = []
        self.random.choices([*operations, self.flush], [4, 6, 6, 5, 2, 1, 0.5])[0]()
        self.compare()

    def open(self) -> None:
        tokens, namespace = self._sequence()
        lease = self.memory.open(tokens, namespace, len(tokens) - 1)
        if lease is not None:
            self.running.append(Running(lease, tokens, namespace, lease.num_matched))

    def compute(self) -> None:
        if self.running:
            request = self.random.choice(self.running)
            wanted = request.num_computed + self.random.randrange(1, 9 * self.page_size)
            wanted = min(wanted, len(request.tokens))
            if self.memory.grow(request.lease, wanted):
                request.num_computed = wanted

    def commit(self) -> None:
        if self.running:
            request = self.random.choice(self.running)
            self.memory.commit(request.lease, request.tokens, request.num_computed)

    def close(self) -> None:
        if self.running:
            request = self.running.pop(self.random.randrange(len(self.running)))
            self.memory.close(request.lease, request.tokens, request.num_computed)

    def flush(self) -> None:
        self.memory.flush()

    def watch(self) -> None:
        if len(self.told) >= 12:
            return
        tokens, namespace = self._sequence()
        limit = len(tokens) - self.random.randrange(-1, min(len(tokens), 2 * self.page_size))
        watch = self.memory.watch(tokens, namespace, limit, self._on_change)
        self.limits[watch] = (tokens, limit)
        self.told[watch] = (watch.num_matched, watch.group)

    def unwatch(self) -> None:
        if self.told:
            watch = self.random.choice(list(self.told))
            self.memory.unwatch(watch)
            del self.told[watch]

    def compare(self) -> None:
        check_memory(self.memory)
        assert len(self.told_now) == len(set(self.told_now)), "told twice in one operation"
        groups: dict[GroupMeaning, Hashable] = {}
        for watch, told in self.told.items():
            assert told == (watch.num_matched, watch.group), "not told of a change"
            tokens, limit = self.limits[watch]
            tokens = tokens[:limit]
            found = self.memory.peek_prefix_length(tokens, watch.namespace)
            assert watch.num_matched == found
            self._check_group(groups, tokens, watch.namespace, found, watch.group)
        for request in self.running:
            found = self.memory.peek_prefix_length(request.tokens, request.namespace)
            group = self.memory.group_of(request.lease, request.tokens)
            self._check_group(groups, request.tokens, request.namespace, found, group)
        assert len(set(groups.values())) == len(groups), "one group for two meanings"

    def _check_group(
        self,
        groups: dict[GroupMeaning, Hashable],
        tokens: NDArray[np.int32],
        namespace: str | None,
        num_matched: int,
        group: Hashable | None,
    ) -> None:
        page = tuple(tokens[num_matched : num_matched + self.page_size].tolist())
        if len(page) < self.page_size:
            assert group is None
            return
        assert group is not None
        meaning = (namespace, tuple(tokens[:num_matched].tolist()), page)
        assert groups.setdefault(meaning, group) == group

    def _on_change(self, watch: PrefixWatch) -> None:
        told = (watch.num_matched, watch.group)
        assert self.told[watch] != told, "told of no change"
        self.told[watch] = told
        self.told_now.append(watch)
        self.num_told += 1
        check_memory(self.memory)

    def _sequence(self) -> tuple[NDArray[np.int32], str | None]:
        # Mostly whole pages of one token, so that paths meet; a few differ within a page.
        pages = [[int(self.random.random() < 0.4)] * self.page_size for _ in range(9)]
        tokens = np.array(pages, dtype=np.int32).reshape(-1)
        if self.random.random() < 0.2:
            tokens[self.random.randrange(len(tokens))] ^= 1
        length = self.random.randrange(2, len(tokens) + 1)
        return tokens[:length], self.random.choice(NAMESPACES)


@pytest.mark.parametrize("page_size", [1, 2, 4])
@pytest.mark.parametrize("policy", ["lru", "lfu"])
def test_watches_are_always_what_a_look_up_finds(page_size: int, policy: str) -> None:
    rig = WatchRig(page_size, policy, seed=page_size)

    for _ in range(NUM_OPERATIONS):
        rig.step()

    assert rig.num_told > 300 and rig.memory.evicted_tokens_total > 500
