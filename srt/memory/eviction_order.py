"""In which order the radix tree gives up its leaves.

An order is kept while the tree is used, never built when something must go. Only childless,
unlocked nodes are given up. A use of a prefix is a use of every prefix of it, yet only the node
where it ends is marked: when a leaf goes, its parent inherits what the leaf knew (latest use, hits,
priority), and before that the parent cannot go. So a use costs O(1), however deep the path.

- lru: least recently used first. The time a node is locked counts as use.
- lfu: fewest hits first (requests that took the prefix from the cache); lru among equals.
- slru: prefixes that were never hit go before those that were; lru within each kind.
- fifo: first inserted, first to go.
- priority: lowest request priority first; lru among equals.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable
from itertools import count
from typing import Protocol

from .radix_node import RadixNode


class EvictionOrder(Protocol):
    """What the tree tells its eviction order, and asks of it."""

    def insert(self, node: RadixNode) -> None:
        """Take in a new, unlocked leaf, as used now."""
        ...

    def use(self, node: RadixNode) -> None:
        """Note that an unlocked prefix was used now, or has just lost its last lock."""
        ...

    def lock(self, node: RadixNode) -> None:
        """Hold a node back until use() is called for it or for a descendant."""
        ...

    def drop(self, leaf: RadixNode, parent: RadixNode) -> None:
        """Let go of what next_to_evict() returned; it has just been taken from under parent."""
        ...

    def next_to_evict(self) -> RadixNode | None:
        """Return the leaf to evict first; None when every leaf is locked."""
        ...

    def clear(self) -> None:
        """Forget all nodes."""
        ...


def make_order(policy: str) -> EvictionOrder:
    """Return an empty order of the named policy, one of EVICTION_POLICIES."""
    assert policy in EVICTION_POLICIES, f"unknown eviction policy {policy!r}"
    return LruOrder() if policy == "lru" else HeapOrder(_KEYS[policy])


class LruOrder:
    """A list by last use. Every step is O(1); next_to_evict() amortised.

    Holds leaves, and inner nodes whose own prefix was used after all longer ones. Those give
    next_to_evict() one step each, once per use.
    """

    def __init__(self) -> None:
        self._nodes: OrderedDict[RadixNode, None] = OrderedDict()

    def insert(self, node: RadixNode) -> None:
        self._nodes[node] = None
        if node.parent is not None:
            self._nodes.pop(node.parent, None)  # from now on used no later than node

    def use(self, node: RadixNode) -> None:
        try:
            self._nodes.move_to_end(node)
        except KeyError:
            self._nodes[node] = None

    def lock(self, node: RadixNode) -> None:
        self._nodes.pop(node, None)

    def drop(self, leaf: RadixNode, parent: RadixNode) -> None:
        del self._nodes[leaf]
        if _may_go(parent) and parent not in self._nodes:
            # Last used with leaf, which was the least recently used of all.
            self._nodes[parent] = None
            self._nodes.move_to_end(parent, last=False)

    def next_to_evict(self) -> RadixNode | None:
        nodes = self._nodes
        while nodes:
            node = next(iter(nodes))
            if not node.children:
                return node
            del nodes[node]
        return None

    def clear(self) -> None:
        self._nodes.clear()


_Key = tuple[int, int]


class HeapOrder:
    """A heap of leaves by a key that never falls while a node lives.

    A node stands in the heap once at most, maybe under an older, smaller key: that is found and
    corrected when it comes to the top. use() is O(1), a new leaf O(log leaves); evicting costs
    O(log leaves) for each node freed and each key corrected, one at most per use.
    """

    def __init__(self, key_of: Callable[[RadixNode], _Key]) -> None:
        self._key_of = key_of
        self._heap: list[tuple[_Key, int, RadixNode]] = []
        self._ticks = count(1)

    def insert(self, node: RadixNode) -> None:
        node.created = node.last_use = next(self._ticks)
        self._push(node)

    def use(self, node: RadixNode) -> None:
        node.last_use = next(self._ticks)
        if not node.children and not node.is_queued:
            self._push(node)

    def lock(self, node: RadixNode) -> None:
        """Nothing to do: a locked node is passed over when it comes to the top."""

    def drop(self, leaf: RadixNode, parent: RadixNode) -> None:
        assert self._heap[0][2] is leaf, f"not the next to evict: {leaf.edge!r}"
        heapq.heappop(self._heap)
        leaf.is_queued = False
        parent.num_hits += leaf.num_hits
        parent.last_use = max(parent.last_use, leaf.last_use)
        parent.priority = max(parent.priority, leaf.priority)
        if _may_go(parent) and not parent.is_queued:
            self._push(parent)

    def next_to_evict(self) -> RadixNode | None:
        heap = self._heap
        while heap:
            key, _, node = heap[0]
            if not _may_go(node):
                heapq.heappop(heap)
                node.is_queued = False
                continue
            current = self._key_of(node)
            if current == key:
                return node
            heapq.heapreplace(heap, (current, next(self._ticks), node))
        return None

    def clear(self) -> None:
        for _, _, node in self._heap:
            node.is_queued = False
        self._heap.clear()

    def _push(self, node: RadixNode) -> None:
        node.is_queued = True
        # The tick keeps nodes of equal keys from being compared.
        heapq.heappush(self._heap, (self._key_of(node), next(self._ticks), node))


def _may_go(node: RadixNode) -> bool:
    """Whether node is an unlocked leaf; the root never is one."""
    return not node.children and node.lock_count == 0 and node.parent is not None


_KEYS: dict[str, Callable[[RadixNode], _Key]] = {
    "lfu": lambda node: (node.num_hits, node.last_use),
    "slru": lambda node: (int(node.num_hits > 0), node.last_use),
    "fifo": lambda node: (node.created, 0),
    "priority": lambda node: (node.priority, node.last_use),
}
EVICTION_POLICIES = ("lru", *_KEYS)
