"""hrrn: the highest response ratio next, in tokens: (computed since arrival + uncached) / uncached.

The ratios grow at every step, each at its own pace, so no order of them can be kept. Kept are
columns of what they are made of; a look at the first few is a pass over two arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Generator

import numpy as np

from .request import Request

FIRST_LOOK = 64  # more than a step admits; only who reads on pays for sorting all


class HighestResponseRatio:
    """Orders requests of one rank; work_done counts tokens computed since start."""

    def __init__(self, work_done: Callable[[], int]) -> None:
        self._work_done = work_done
        self._requests: list[Request] = []
        self._places: dict[Request, int] = {}
        self._arrived_at = np.zeros(FIRST_LOOK)  # work done then
        self._uncached = np.ones(FIRST_LOOK)

    def add(self, request: Request) -> None:
        """Take request in."""
        place = len(self._requests)
        if place == len(self._uncached):
            self._arrived_at = np.concatenate([self._arrived_at, np.zeros(place)])
            self._uncached = np.concatenate([self._uncached, np.ones(place)])
        self._requests.append(request)
        self._places[request] = place
        self._arrived_at[place] = self._work_done()
        self.changed(request)

    def remove(self, request: Request) -> None:
        """Let request go; the last one takes its place."""
        place = self._places.pop(request)
        last = self._requests.pop()
        if last is not request:
            end = len(self._requests)
            self._requests[place] = last
            self._places[last] = place
            self._arrived_at[place] = self._arrived_at[end]
            self._uncached[place] = self._uncached[end]

    def changed(self, request: Request) -> None:
        """Note what is cached of request now."""
        uncached = max(request.num_tokens - request.num_cached, 1)
        self._uncached[self._places[request]] = uncached

    def walk(self) -> Generator[Request, None, None]:
        """Yield requests from the first on; those yielded may leave meanwhile."""
        first = self._best(FIRST_LOOK)
        yield from first
        passed = set(first)
        yield from (one for one in self._best(len(self._requests)) if one not in passed)

    def _best(self, count: int) -> list[Request]:
        """Return the first count requests in order, with all that tie with the last of them."""
        num_requests = len(self._requests)
        waited = self._work_done() - self._arrived_at[:num_requests]
        ratios = waited / self._uncached[:num_requests]
        places = np.arange(num_requests)
        if count < num_requests:
            places = np.flatnonzero(ratios >= np.partition(ratios, -count)[-count])
        found = [
            (-ratio, self._requests[place].number, place)  # equal ratios: by arrival
            for ratio, place in zip(ratios[places].tolist(), places.tolist(), strict=True)
        ]
        return [self._requests[place] for _, _, place in sorted(found)]
