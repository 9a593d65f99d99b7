"""The waiting queue: requests in the order of a policy, with bounds on how long one may wait.

Every AGEING_STRIDE-th admission goes to the oldest request (k-LPM), and one that has waited for
longer than max_wait_seconds comes before all others. A request whose prefix a prompt in progress is
about to cache is parked until that is done: a leader computes it, its followers find it.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Generator, Hashable, Iterator, Mapping, Sequence
from functools import partial

from ..memory.kv_memory import KvMemory
from .kept_order import KeptOrder
from .program_order import ProgramOrder
from .queue_order import POLICIES, QueueOrder, arrival_key
from .request import Request

AGEING_STRIDE = 8
MIN_SHARED_TOKENS = 32  # a follower waits for a leader if it saves at least this many tokens
UNPARKED_PER_STEP = 64  # more than a step admits; each costs a walk down the tree


class WaitingQueue:
    """All requests that hold no lease.

    work_done counts tokens computed since start. A follower waits for a leader if that saves it at
    least min_shared_tokens (0: nobody waits) and no more than max_cached_tokens of it are cached
    already (None: however many). program_order: programs that have begun come before the policy's
    order.
    """

    def __init__(
        self,
        memory: KvMemory,
        policy: str,
        clock: Callable[[], float],
        work_done: Callable[[], int],
        max_wait_seconds: float | None = None,
        ageing_stride: int = AGEING_STRIDE,
        min_shared_tokens: int = MIN_SHARED_TOKENS,
        max_cached_tokens: int | None = None,
        program_order: bool = False,
    ) -> None:
        self._memory = memory
        self._clock = clock
        self._max_wait_seconds = max_wait_seconds
        self._ageing_stride = ageing_stride
        self._min_shared_tokens = min_shared_tokens
        self._max_cached_tokens = max_cached_tokens
        make_order = partial(POLICIES[policy], work_done)
        self._programs = ProgramOrder(make_order) if program_order else None
        self._order: QueueOrder = self._programs or make_order()
        self._by_age = KeptOrder(arrival_key)
        self._by_arrival = KeptOrder(lambda r: (r.message.arrival_seconds, r.number))
        self._is_fcfs = policy == "fcfs" and not program_order
        # By leader: (shared prefix, number, follower). One that has left stays until it is met.
        self._parked: dict[Request, list[tuple[float, int, Request]]] = {}
        self._aside: set[Request] = set()  # parked or deferred
        self._deferred: list[tuple[float, int, Request]] = []
        self._ready: deque[Request] = deque()  # no longer parked, not yet in the order
        self._num_admitted = 0
        self.num_tokens = 0

    def __len__(self) -> int:
        return len(self._by_arrival)

    def __iter__(self) -> Iterator[Request]:
        return self._by_arrival.requests()

    def __contains__(self, request: Request) -> bool:
        return request in self._by_arrival

    @property
    def has_deferred(self) -> bool:
        """Whether somebody waits for a time to come."""
        return any(request in self._aside for _, _, request in self._deferred)

    def add(self, request: Request) -> None:
        """Take in a request that has arrived or was retracted."""
        self.num_tokens += request.num_tokens
        self._by_arrival.add(request)
        self._enter_order(request)

    def remove(self, request: Request) -> None:
        """Let a request go that was aborted, or admitted (see admit)."""
        self.num_tokens -= request.num_tokens
        self._by_arrival.remove(request)
        if request in self._aside:
            self._aside.remove(request)
            if len(self._deferred) > 2 * len(self._aside) + 64:
                self._deferred = [place for place in self._deferred if place[2] in self._aside]
                heapq.heapify(self._deferred)
        elif request in self._by_age:
            self._leave_order(request)
        else:
            self._ready.remove(request)

    def admit(self, request: Request) -> None:
        """Let a request go that has a lease now."""
        self.remove(request)
        self._num_admitted += 1
        if self._programs is not None:
            self._programs.admitted(request)

    def candidates(self) -> Generator[Request, None, None]:
        """Yield requests to admit, the most urgent first; call admit for those that are.

        Parked and deferred requests are left out. Close the iterator when done.
        """
        self._unpark()
        seen: set[Request] = set()
        order, by_age = self._order.walk(), self._by_age.walk()
        try:
            yield from self._overdue(seen)
            aged_at = None
            while True:
                is_aged = self._is_aged_turn() and aged_at != self._num_admitted
                if is_aged:
                    aged_at = self._num_admitted
                source = by_age if is_aged else order
                found = next((one for one in source if one not in seen), None)
                if found is not None:
                    seen.add(found)
                    yield found
                elif not is_aged:
                    return
        finally:
            order.close()
            by_age.close()

    def park_behind(self, request: Request, leaders: Mapping[Hashable, Sequence[Request]]) -> bool:
        """Park request if one of leaders, by group, will soon have cached much of its prefix.

        It comes back when that part is computed (see advanced) or the leader is gone (see left).
        """
        watch = request.watch
        if watch is None or watch.group is None or self._min_shared_tokens == 0:
            return False
        most = self._max_cached_tokens
        if most is not None and watch.num_matched > most:
            return False
        for leader in leaders.get(watch.group, ()):
            if leader.lease is None:
                continue  # retracted again in this step: it computes nothing
            shared = _shared_tokens(leader, request, watch.num_matched)
            if shared >= watch.num_matched + self._min_shared_tokens:
                self._leave_order(request)
                self._aside.add(request)
                parked = self._parked.setdefault(leader, [])
                heapq.heappush(parked, (shared, request.number, request))
                return True
        return False

    def defer(self, request: Request, until_seconds: float) -> None:
        """Leave request out until a time on the clock."""
        self._leave_order(request)
        self._aside.add(request)
        heapq.heappush(self._deferred, (until_seconds, request.number, request))

    def advanced(self, leader: Request) -> None:
        """leader has cached its first num_ready tokens: who waited for those may go on."""
        if leader in self._parked:
            self._release(leader, leader.num_ready)

    def left(self, leader: Request) -> None:
        """leader computes no more: all who waited for it may go on."""
        if leader in self._parked:
            self._release(leader, leader.num_tokens)
            assert leader not in self._parked, f"followers of {leader.rid} were left behind"

    def _release(self, leader: Request, num_tokens: int) -> None:
        parked = self._parked[leader]
        self._bring_back(parked, num_tokens)
        if not parked:
            del self._parked[leader]

    def _bring_back(self, aside: list[tuple[float, int, Request]], limit: float) -> None:
        """Take those from the heap aside whose number is within limit."""
        while aside and aside[0][0] <= limit:
            request = heapq.heappop(aside)[2]
            if request in self._aside:  # else it has left meanwhile
                self._aside.remove(request)
                self._ready.append(request)

    def _unpark(self) -> None:
        self._bring_back(self._deferred, self._clock())
        for _ in range(min(UNPARKED_PER_STEP, len(self._ready))):
            self._enter_order(self._ready.popleft())

    def _overdue(self, seen: set[Request]) -> Iterator[Request]:
        if self._max_wait_seconds is None:
            return
        limit = self._clock() - self._max_wait_seconds
        by_arrival = self._by_arrival.walk()
        try:
            for request in by_arrival:
                if request.message.arrival_seconds > limit:
                    return
                if request in self._by_age:
                    seen.add(request)
                    yield request
        finally:
            by_arrival.close()

    def _is_aged_turn(self) -> bool:
        stride = self._ageing_stride
        return not self._is_fcfs and self._num_admitted % stride == stride - 1

    def _enter_order(self, request: Request) -> None:
        if self._memory.enable_cache:
            request.watch = self._memory.watch(
                request.all_tokens(),
                request.message.namespace,
                request.match_limit,
                partial(self._cached_prefix_changed, request),
            )
        self._by_age.add(request)
        self._order.add(request)

    def _leave_order(self, request: Request) -> None:
        self._by_age.remove(request)
        self._order.remove(request)
        if request.watch is not None:
            self._memory.unwatch(request.watch)
            request.watch = None

    def _cached_prefix_changed(self, request: Request, watch: object) -> None:
        self._order.changed(request)


def _shared_tokens(leader: Request, request: Request, start: int) -> int:
    """Length of the prefix they share, as far as request may take it from the cache."""
    # Not num_tokens: the place of a token that is still being drawn holds anything.
    stop = min(leader.num_cacheable, request.match_limit)
    differs = leader.tokens[start:stop] != request.tokens[start:stop]
    return start + int(differs.argmax()) if differs.any() else stop
