"""Runs plain program functions in a bounded number of threads, however many there are.

A function that waits in the language gives its thread to others, which greenlets make possible: its
stack is put aside until what it waits for is there. Between two waits it has the thread to itself.
Up to the bound each function has a thread of its own.
"""

from __future__ import annotations

import contextvars
import heapq
import itertools
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from queue import Empty, SimpleQueue
from typing import Any, TypeAlias

from greenlet import getcurrent, greenlet

from .loop_thread import set_parking, wait_async
from .promise import Promise, Waitable

# Above this threads cost more than they give: only what a function computes or waits for outside
# the language gains from one of its own.
MAX_THREADS = 32


class BodyThreads:
    """At most max_threads threads, made as needed, gone when no function is left."""

    def __init__(self, max_threads: int = MAX_THREADS) -> None:
        self._max_threads = min(max_threads, MAX_THREADS)
        # Its threads are waited for when the interpreter ends, and used again before that.
        self._executor = ThreadPoolExecutor(self._max_threads, thread_name_prefix="program")
        self._lock = threading.Lock()
        self._hubs: list[_Hub] = []

    async def call(self, work: Callable[[], None]) -> None:
        """Run work in the caller's context; cancelling the wait does not end work."""
        await wait_async(self.start(work))

    def start(self, work: Callable[[], None]) -> Promise[None]:
        """The same without waiting for it."""
        job = _Job(work, contextvars.copy_context())
        with self._lock:
            if len(self._hubs) < self._max_threads:
                hub = _Hub()
                self._executor.submit(hub.serve, self._leave)  # raises at the interpreter's end
                self._hubs.append(hub)
            else:
                hub = min(self._hubs, key=_num_bodies)
            hub.num_bodies += 1
        hub.ready.put(job)
        return job.done

    def close(self) -> None:
        """Take no more functions; those that run go on."""
        self._executor.shutdown(wait=False)

    def _leave(self, hub: _Hub) -> bool:
        """A function of hub has ended: return whether it was the last and the hub ends too."""
        with self._lock:
            hub.num_bodies -= 1
            if hub.num_bodies == 0:
                self._hubs.remove(hub)
            return hub.num_bodies == 0


class _Job:
    """A function to run."""

    __slots__ = ("context", "done", "work")

    def __init__(self, work: Callable[[], None], context: contextvars.Context) -> None:
        self.work = work
        self.context = context
        self.done: Promise[None] = Promise()

    def run(self) -> None:
        try:
            self.work()
        except BaseException as error:
            self.done.set_exception(error)
        else:
            self.done.set_result(None)


class _Body(greenlet):
    """A function that runs: its stack, and which of its waits is the present one."""

    def __init__(self, job: _Job, hub: _Hub) -> None:
        super().__init__(job.run)
        self.gr_context = job.context
        self.hub = hub
        self.num_waits = 0


_Wake: TypeAlias = tuple[_Body, int]  # a body, and which of its waits is over


class _Hub:
    """One thread, and the functions that take turns in it."""

    def __init__(self) -> None:
        self.ready: SimpleQueue[_Job | _Wake] = SimpleQueue()
        self.num_bodies = 0  # changed under the lock of BodyThreads
        self._main: greenlet = getcurrent()  # that of the thread which serves
        self._deadlines: list[tuple[float, int, _Wake]] = []  # a heap; some waits are over
        self._numbers = itertools.count()  # no two entries of the heap are equal
        # A greenlet that nobody refers to is ended by the collector.
        self._parked: set[_Body] = set()

    def serve(self, leave: Callable[[_Hub], bool]) -> None:
        """Run functions until leave says that none is left."""
        self._main = getcurrent()
        set_parking(self._park)
        try:
            while True:
                item = self._next()
                if isinstance(item, _Job):
                    body = _Body(item, self)
                else:
                    body = item[0]
                    if not self._is_waiting(item):
                        continue  # its time had passed before
                    self._parked.discard(body)
                body.switch()
                if body.dead and leave(self):
                    return
        finally:
            set_parking(None)

    def _park(self, future: Waitable[Any], timeout_seconds: float | None) -> None:
        """Called by a function in this thread: let others run until future is done, or the time."""
        body = getcurrent()
        assert isinstance(body, _Body), "a wait in this thread, outside its functions"
        body.num_waits += 1
        wake = (body, body.num_waits)
        self._parked.add(body)
        if timeout_seconds is not None:
            when = time.monotonic() + timeout_seconds
            heapq.heappush(self._deadlines, (when, next(self._numbers), wake))
            if len(self._deadlines) > 2 * len(self._parked) + 64:
                self._deadlines = [one for one in self._deadlines if self._is_waiting(one[2])]
                heapq.heapify(self._deadlines)
        future.add_done_callback(lambda _: self.ready.put(wake))
        self._main.switch()

    def _next(self) -> _Job | _Wake:
        while self._deadlines:
            when, _, wake = self._deadlines[0]
            if self._is_waiting(wake):
                try:
                    return self.ready.get(timeout=max(0.0, when - time.monotonic()))
                except Empty:
                    heapq.heappop(self._deadlines)
                    return wake
            heapq.heappop(self._deadlines)
        return self.ready.get()

    def _is_waiting(self, wake: _Wake) -> bool:
        body, wait_number = wake
        return body.num_waits == wait_number and body in self._parked


def _num_bodies(hub: _Hub) -> int:
    return hub.num_bodies
