"""Hands requests out when they are due: by the trace's clock, whatever the server does.

Open loop: a root arrives at its time, a dependent request its delay after the last of its parents
has ended. With a queue depth the arrivals of roots are ignored instead, and as many are handed out
as keep that many requests waiting: a steady overload.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass

from .trace import Trace, TraceRequest


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request and the time at which it was due."""

    due: float
    request: TraceRequest


class Feeder:
    """Each request of a trace is handed out once, or skipped because a parent failed."""

    def __init__(self, trace: Trace, queue_depth: int | None = None) -> None:
        self._queue_depth = queue_depth
        self._due: list[tuple[float, int, TraceRequest]] = []
        self._backlog: deque[TraceRequest] = deque()
        self._children: dict[str, list[TraceRequest]] = {}
        self._open_parents: dict[str, int] = {}
        self._places = {request.id: place for place, request in enumerate(trace.requests)}
        for request in trace.requests:
            self._take_in(request)

    def take_due(self, now: float, num_waiting: int) -> list[Arrival]:
        """Return the requests that are due by now, in the order of their times."""
        taken: list[Arrival] = []
        while self._due and self._due[0][0] <= now:
            due, _, request = heapq.heappop(self._due)
            taken.append(Arrival(due, request))
        if self._queue_depth is not None:
            while self._backlog and num_waiting + len(taken) < self._queue_depth:
                taken.append(Arrival(now, self._backlog.popleft()))
        return taken

    def next_due(self) -> float | None:
        """The time of the next arrival that is known already; None if there is none."""
        return self._due[0][0] if self._due else None

    def ended(self, request: TraceRequest, now: float) -> None:
        """request has finished: its children may come."""
        for child in self._children.pop(request.id, ()):
            if child.id not in self._open_parents:
                continue  # skipped, for another parent failed
            self._open_parents[child.id] -= 1
            if self._open_parents[child.id] == 0:
                self._push(now + child.delay, child)

    def failed(self, request: TraceRequest) -> list[TraceRequest]:
        """request has no answer: return all that can never come for want of it."""
        skipped: list[TraceRequest] = []
        pending = self._children.pop(request.id, [])
        while pending:
            child = pending.pop()
            if self._open_parents.pop(child.id, None) is None:
                continue  # it had another failed parent
            skipped.append(child)
            pending.extend(self._children.pop(child.id, ()))
        return skipped

    def _take_in(self, request: TraceRequest) -> None:
        if request.after:
            self._open_parents[request.id] = len(set(request.after))
            for parent in set(request.after):
                self._children.setdefault(parent, []).append(request)
        elif self._queue_depth is None:
            self._push(request.arrival, request)
        else:
            self._backlog.append(request)

    def _push(self, due: float, request: TraceRequest) -> None:
        heapq.heappush(self._due, (due, self._places[request.id], request))
