"""Limits on single requests and on whole tenants: deadlines and token quotas."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping

from .request import Request

BURST_SECONDS = 60.0  # a quota that was not used for so long may be used at once


class Deadlines:
    """Open requests with a deadline, the nearest first."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Request]] = []
        self._num_ended = 0  # of those in the heap

    def add(self, request: Request) -> None:
        """Watch over a request, if it has a deadline."""
        deadline = request.message.deadline_seconds
        if deadline is not None:
            heapq.heappush(self._heap, (deadline, request.number, request))

    def ended(self, request: Request) -> None:
        """request has ended, mostly long before its deadline: do not keep it until then."""
        if request.message.deadline_seconds is None:
            return
        self._num_ended += 1
        if self._num_ended > len(self._heap) // 2 + 16:
            self._heap = [place for place in self._heap if place[2].finish is None]
            heapq.heapify(self._heap)
            self._num_ended = 0

    def expired(self, now: float) -> Iterator[Request]:
        """Yield and forget requests whose deadline has passed and that have not ended."""
        while self._heap and self._heap[0][0] <= now:
            request = heapq.heappop(self._heap)[2]
            if request.finish is None:
                yield request


class TokenQuotas:
    """A token bucket per tenant: prompt tokens not found in the cache, and output tokens.

    rates: tokens per minute. A tenant without a rate has no limit. A bucket may go below zero, for
    nobody knows an output's length before its end; its tenant then waits longer.
    """

    def __init__(self, rates: Mapping[str, float], clock: Callable[[], float]) -> None:
        self._clock = clock
        self._per_second = {name: rate / 60.0 for name, rate in rates.items()}
        self._level = {name: rate * BURST_SECONDS for name, rate in self._per_second.items()}
        self._filled_at = dict.fromkeys(self._per_second, clock())

    def waits_until(self, tenant: str | None) -> float | None:
        """Return when tenant may start a request; None: now."""
        if tenant is None or tenant not in self._per_second:
            return None
        level = self._fill(tenant)
        return None if level > 0 else self._clock() - level / self._per_second[tenant]

    def charge(self, tenant: str | None, num_tokens: int) -> None:
        """Take tokens that were or will be computed out of tenant's bucket."""
        if tenant is not None and tenant in self._per_second:
            self._level[tenant] = self._fill(tenant) - num_tokens

    def _fill(self, tenant: str) -> float:
        now = self._clock()
        rate = self._per_second[tenant]
        level = self._level[tenant] + rate * (now - self._filled_at[tenant])
        self._filled_at[tenant] = now
        self._level[tenant] = min(level, rate * BURST_SECONDS)
        return self._level[tenant]
