"""Queue policies: in which order waiting requests are looked at.

fcfs: by arrival. lpm: the longest cached prefix first, so that what is cached is used before it is
evicted. lof: the longest output asked for first. shortest-prefill-first: the fewest uncached prompt
tokens first. random. These have a key per request that only the request's own changes move, so
their order is kept. hrrn (highest response ratio next: work done since arrival over work asked for)
and dfs-weight (down the tree, the branch that most requests wait for first) move all the time and
are made when they are read. In all of them a higher priority comes first, and of one priority those
that were retracted: a client has begun to read their answers.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Generator
from functools import partial
from typing import Protocol

from .depth_first_order import DepthFirstByWeight
from .kept_order import KeptOrder, Key
from .request import Request
from .response_ratio_order import HighestResponseRatio


class QueueOrder(Protocol):
    """An order over waiting requests, told of each that comes, leaves or changes."""

    def add(self, request: Request) -> None: ...

    def remove(self, request: Request) -> None: ...

    def changed(self, request: Request) -> None: ...

    def walk(self) -> Generator[Request, None, None]:
        """Yield requests from the first on; those yielded may leave meanwhile."""
        ...


def arrival_key(request: Request) -> Key:
    """Place by rank, then arrival; unique."""
    return (*rank_of(request), *_arrival(request))


def rank_of(request: Request) -> Key:
    """What no order passes over; it does not change while a request waits."""
    return (-request.message.priority, request.num_retractions == 0)


def _arrival(request: Request) -> Key:
    return (request.message.arrival_seconds, request.number)


def _lpm_key(request: Request) -> Key:
    return (*rank_of(request), -request.num_cached, *_arrival(request))


def _lof_key(request: Request) -> Key:
    return (*rank_of(request), -request.max_new_tokens, *_arrival(request))


def _shortest_prefill_key(request: Request) -> Key:
    return (*rank_of(request), request.num_tokens - request.num_cached, *_arrival(request))


def _random_key(request: Request) -> Key:
    # Drawn once per request: a new draw at each step would be no order at all.
    return (*rank_of(request), zlib.crc32(request.rid.encode()), request.number)


class ByRank:
    """One order of a kind for each rank, read one after the other: for orders without keys."""

    def __init__(self, make_order: Callable[[], QueueOrder]) -> None:
        self._make_order = make_order
        self._orders: dict[Key, QueueOrder] = {}
        self._counts: Counter[Key] = Counter()

    def add(self, request: Request) -> None:
        rank = rank_of(request)
        if rank not in self._orders:
            self._orders[rank] = self._make_order()
        self._orders[rank].add(request)
        self._counts[rank] += 1

    def remove(self, request: Request) -> None:
        rank = rank_of(request)
        self._orders[rank].remove(request)
        self._counts[rank] -= 1
        if not self._counts[rank]:
            del self._orders[rank], self._counts[rank]

    def changed(self, request: Request) -> None:
        self._orders[rank_of(request)].changed(request)

    def walk(self) -> Generator[Request, None, None]:
        for rank in sorted(self._orders):
            order = self._orders.get(rank)  # those yielded may have been its last
            if order is not None:
                yield from order.walk()


POLICIES: dict[str, Callable[[Callable[[], int]], QueueOrder]] = {
    "fcfs": lambda work_done: KeptOrder(arrival_key),
    "lpm": lambda work_done: KeptOrder(_lpm_key),
    "dfs-weight": lambda work_done: ByRank(DepthFirstByWeight),
    "hrrn": lambda work_done: ByRank(partial(HighestResponseRatio, work_done)),
    "lof": lambda work_done: KeptOrder(_lof_key),
    "shortest-prefill-first": lambda work_done: KeptOrder(_shortest_prefill_key),
    "random": lambda work_done: KeptOrder(_random_key),
}
CACHE_AWARE = frozenset({"lpm", "dfs-weight", "hrrn", "shortest-prefill-first"})
