"""Queue policies: in which order waiting requests are looked at.

fcfs: by arrival. lpm: the longest cached prefix first, so that what is cached is used before it is
evicted. lof: the longest output asked for first. shortest-prefill-first: the fewest uncached prompt
tokens first. random. These have a key per request that only the request's own changes move, so
their order is kept. hrrn (highest response ratio next: work done since arrival over work asked for)
and dfs-weight (down the tree, the branch that most requests wait for first) move all the time and
are sorted when they are read. A higher priority comes first in all of them.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Generator
from typing import Protocol

import numpy as np

from ..memory.radix_node import RadixNode
from .kept_order import KeptOrder, Key
from .request import Request


class QueueOrder(Protocol):
    """An order over waiting requests, told of each that comes, leaves or changes."""

    def add(self, request: Request) -> None: ...

    def remove(self, request: Request) -> None: ...

    def changed(self, request: Request) -> None: ...

    def walk(self) -> Generator[Request, None, None]:
        """Yield requests from the first on; those yielded may leave meanwhile."""
        ...


def arrival_key(request: Request) -> Key:
    """Place by priority, then arrival; unique."""
    return (-request.message.priority, request.message.arrival_seconds, request.number)


def _lpm_key(request: Request) -> Key:
    priority, *arrival = arrival_key(request)
    return (priority, -request.num_cached, *arrival)


def _lof_key(request: Request) -> Key:
    priority, *arrival = arrival_key(request)
    return (priority, -request.max_new_tokens, *arrival)


def _shortest_prefill_key(request: Request) -> Key:
    priority, *arrival = arrival_key(request)
    return (priority, request.num_tokens - request.num_cached, *arrival)


def _random_key(request: Request) -> Key:
    # Drawn once per request: a new draw at each step would be no order at all.
    return (-request.message.priority, zlib.crc32(request.rid.encode()), request.number)


class HighestResponseRatio:
    """hrrn in tokens: (computed since arrival + uncached) / uncached."""

    def __init__(self, work_done: Callable[[], int]) -> None:
        self._work_done = work_done
        self._arrived_at: dict[Request, int] = {}

    def add(self, request: Request) -> None:
        self._arrived_at[request] = self._work_done()

    def remove(self, request: Request) -> None:
        del self._arrived_at[request]

    def changed(self, request: Request) -> None:
        pass

    def walk(self) -> Generator[Request, None, None]:
        requests = list(self._arrived_at)
        waited = self._work_done() - np.fromiter(self._arrived_at.values(), float, len(requests))
        uncached = np.array([max(one.num_tokens - one.num_cached, 1) for one in requests])
        priority = np.array([one.message.priority for one in requests])
        # Stable: equal ratios keep the order of arrival.
        order = np.lexsort((-waited / uncached, -priority))
        yield from (requests[index] for index in order)


class DepthFirstByWeight:
    """dfs-weight: subtrees with more waiting requests first, deeper requests before shallower."""

    def __init__(self) -> None:
        self._requests: dict[Request, None] = {}

    def add(self, request: Request) -> None:
        self._requests[request] = None

    def remove(self, request: Request) -> None:
        del self._requests[request]

    def changed(self, request: Request) -> None:
        pass

    def walk(self) -> Generator[Request, None, None]:
        by_priority: dict[int, list[Request]] = {}
        for request in self._requests:
            by_priority.setdefault(request.message.priority, []).append(request)
        for priority in sorted(by_priority, reverse=True):
            yield from _depth_first(by_priority[priority])


def _depth_first(requests: list[Request]) -> Generator[Request, None, None]:
    at_node: dict[RadixNode | None, list[Request]] = {}
    weights: dict[RadixNode, int] = {}
    children: dict[RadixNode | None, list[RadixNode]] = {}
    root: RadixNode | None = None
    for request in requests:
        node = request.cached_node
        at_node.setdefault(node, []).append(request)
        while node is not None:
            weights[node] = weights.get(node, 0) + 1
            parent = node.parent
            if parent is None:
                root = node
            elif weights[node] == 1:
                children.setdefault(parent, []).append(node)
            node = parent
    pending: list[tuple[RadixNode | None, bool]] = [(root, False)]
    while pending:
        found, is_left = pending.pop()
        if is_left:
            yield from at_node.get(found, ())
            continue
        pending.append((found, True))
        below = sorted(children.get(found, ()), key=lambda child: weights[child])
        pending.extend((child, False) for child in below)


POLICIES: dict[str, Callable[[Callable[[], int]], QueueOrder]] = {
    "fcfs": lambda work_done: KeptOrder(arrival_key),
    "lpm": lambda work_done: KeptOrder(_lpm_key),
    "dfs-weight": lambda work_done: DepthFirstByWeight(),
    "hrrn": HighestResponseRatio,
    "lof": lambda work_done: KeptOrder(_lof_key),
    "shortest-prefill-first": lambda work_done: KeptOrder(_shortest_prefill_key),
    "random": lambda work_done: KeptOrder(_random_key),
}
CACHE_AWARE = frozenset({"lpm", "dfs-weight", "hrrn", "shortest-prefill-first"})
