"""KeptOrder: requests by a key that may change, read from the front without sorting anew.

A heap with lazy deletion: a change costs O(log n), a look at the first k costs O(k log n), whatever
the number of requests.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Generator, Iterator
from itertools import count
from typing import Any, TypeAlias

from .request import Request

Key: TypeAlias = tuple[Any, ...]


class _Entry:
    """One request at one place; dead once the request has left or moved."""

    __slots__ = ("is_dead", "request")

    def __init__(self, request: Request) -> None:
        self.request = request
        self.is_dead = False


# The serial keeps entries from being compared: a dead one may have the key of a living one.
_Place: TypeAlias = tuple[Key, int, _Entry]


class KeptOrder:
    """key gives each request's place; no two requests may have equal keys."""

    def __init__(self, key: Callable[[Request], Key]) -> None:
        self._key = key
        self._heap: list[_Place] = []
        self._serials = count()
        self._entries: dict[Request, _Entry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, request: Request) -> bool:
        return request in self._entries

    def requests(self) -> Iterator[Request]:
        """Yield all requests, in no stated order."""
        return iter(self._entries)

    def add(self, request: Request) -> None:
        """Take request in."""
        entry = self._entries[request] = _Entry(request)
        heapq.heappush(self._heap, (self._key(request), next(self._serials), entry))

    def remove(self, request: Request) -> None:
        """Let request go."""
        self._entries.pop(request).is_dead = True
        if len(self._heap) > 2 * len(self._entries) + 64:
            self._heap = [place for place in self._heap if not place[2].is_dead]
            heapq.heapify(self._heap)

    def changed(self, request: Request) -> None:
        """Put request in its place again: its key may have changed."""
        self.remove(request)
        self.add(request)

    def walk(self) -> Generator[Request, None, None]:
        """Yield requests from the first on; while walking, any may leave, move or come.

        One that comes or moves is met if its place is still ahead. Close the iterator when done.
        """
        passed: list[_Place] = []
        try:
            while self._heap:
                place = heapq.heappop(self._heap)
                if place[2].is_dead:
                    continue
                passed.append(place)
                yield place[2].request
        finally:
            for place in passed:
                if not place[2].is_dead:
                    heapq.heappush(self._heap, place)
