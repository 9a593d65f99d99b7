"""The radix tree beside a dictionary of prefixes: random operations on a vocabulary of 2."""

from __future__ import annotations

import random

import numpy as np
import pytest
from numpy.typing import NDArray
from support.prefix_model import PrefixModel

from runtime.srt.memory import path_walk
from runtime.srt.memory.eviction_order import EVICTION_POLICIES
from runtime.srt.memory.radix_node import RadixNode
from runtime.srt.memory.radix_tree import PrefixMatch, RadixTree
from runtime.srt.memory.tree_checks import check_tree

NUM_OPERATIONS = 3_000
NAMESPACES = [None, "", "tenant"]


class TreePair:
    """Tree and model under the same operations, compared after each."""

    def __init__(self, page_size: int, seed: int, policy: str) -> None:
        self.random = random.Random(seed)
        self.page_size = page_size
        self.freed: list[int] = []
        self.tree = RadixTree(page_size, self._take_back, policy)
        self.model = PrefixModel(page_size, policy)
        self.locks: list[tuple[RadixNode, list[int], str | None]] = []
        self.num_slots_given = 0

    def step(self) -> None:
        operations = [self.match, self.peek, self.insert, self.lock, self.unlock, self.evict]
        weights = [6, 2, 6, 3, 3, 2]
        self.random.choices(operations, weights)[0]()
        if self.random.random() < 0.003:
            self.flush()
        self.compare()

    def match(self) -> PrefixMatch:
        tokens, namespace = self._sequence()

        match = self.tree.match_prefix(_array(tokens), namespace)

        assert match.num_tokens == self.model.match(tokens, namespace)
        found = self.model.slots(tokens[: match.num_tokens], namespace)
        assert match.slots().tolist() == found
        if self.random.random() < 0.5:
            self.tree.count_hit(match.node)
            self.model.count_hit(tokens[: match.num_tokens], namespace)
        return match

    def peek(self) -> None:
        tokens, namespace = self._sequence()

        found = self.tree.peek_prefix_length(_array(tokens), namespace)

        assert found == self.model.match(tokens, namespace, touch=False)

    def insert(self) -> None:
        tokens, namespace = self._sequence()
        tokens = tokens[: len(tokens) // self.page_size * self.page_size]
        slots = list(range(self.num_slots_given, self.num_slots_given + len(tokens)))
        self.num_slots_given += len(tokens)

        priority = self.random.randrange(-1, 2)

        result = self.tree.insert(_array(tokens), _array(slots), namespace, priority)

        expected = self.model.insert(tokens, slots, namespace, priority)
        assert result.num_already_cached == expected

    def lock(self) -> None:
        if len(self.locks) >= 6:
            return
        tokens, namespace = self._sequence()
        match = self.tree.match_prefix(_array(tokens), namespace)
        tokens = tokens[: self.model.match(tokens, namespace)]

        self.tree.lock(match.node)

        self.model.lock(tokens, namespace)
        self.locks.append((match.node, tokens, namespace))

    def unlock(self) -> None:
        if self.locks:
            node, tokens, namespace = self.locks.pop(self.random.randrange(len(self.locks)))
            self.tree.unlock(node)
            self.model.unlock(tokens, namespace)

    def evict(self) -> None:
        num_tokens = self.random.randrange(12 * self.page_size)
        self.freed = []

        num_freed = self.tree.evict(num_tokens)

        assert set(self.freed) == self.model.evict(num_tokens)
        assert len(self.freed) == len(set(self.freed)) == num_freed

    def flush(self) -> None:
        while self.locks:
            self.unlock()
        self.freed = []

        self.tree.flush()

        assert len(self.freed) == len(self.model.pages) * self.page_size
        assert set(self.freed) == self.model.evict(self.model.tokens_unlocked())

    def compare(self) -> None:
        check_tree(self.tree)
        assert self.tree.protected_tokens == self.model.tokens_locked()
        assert self.tree.evictable_tokens == self.model.tokens_unlocked()
        for node, tokens, namespace in self.locks:
            assert PrefixMatch(len(tokens), node).slots().tolist() == self.model.slots(
                tokens, namespace
            )

    def _sequence(self) -> tuple[list[int], str | None]:
        length = self.random.randrange(9 * self.page_size)
        # Pages of two kinds, now and then cut short within, so that paths meet and part.
        tokens = [
            self.random.randrange(2) if self.random.random() < 0.5 else 0 for _ in range(length)
        ]
        return tokens, self.random.choice(NAMESPACES)

    def _take_back(self, slots: NDArray[np.int32]) -> None:
        self.freed.extend(slots.tolist())


@pytest.mark.parametrize("skip_nodes", [2])
@pytest.mark.parametrize("page_size", [1, 2, 4])
@pytest.mark.parametrize("policy", EVICTION_POLICIES)
def test_tree_equals_a_dictionary_of_prefixes(
    page_size: int, policy: str, skip_nodes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(path_walk, "SKIP_NODES", skip_nodes)
    pair = TreePair(page_size, page_size + skip_nodes, policy)

    for _ in range(NUM_OPERATIONS):
        pair.step()

    assert pair.tree.evicted_tokens_total > 0


def _array(values: list[int]) -> NDArray[np.int32]:
    return np.array(values, dtype=np.int32)
