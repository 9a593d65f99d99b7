"""The one event loop on which all calls of all programs run, and how others wait for it.

It has a thread of its own, so that programs may be plain functions in any thread, or coroutines on
any other loop.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeAlias, TypeVar

import uvloop

from .errors import DeadlinePassed, ProgramError
from .promise import Waitable

T = TypeVar("T")


Park: TypeAlias = Callable[[Waitable[Any], float | None], None]


class LoopThread:
    """An event loop on a daemon thread."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._loop = uvloop.new_event_loop()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, name="language", daemon=True)
        self._thread.start()

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Run work, which catches its own errors, without waiting for it."""
        if self.is_current():
            self._start(work)
        else:
            self._loop.call_soon_threadsafe(self._start, work)

    def submit(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Run work; cancelling what is returned cancels it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def cancel(self, task: asyncio.Task[Any]) -> None:
        """Cancel a task of this loop, from any thread."""
        self._loop.call_soon_threadsafe(task.cancel)

    def is_current(self) -> bool:
        """Whether the caller runs on this loop, which must not be blocked."""
        return threading.current_thread() is self._thread

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        # The loop itself keeps weak references only.
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class _OfThread(threading.local):
    park: Park | None = None


_thread = _OfThread()
_lock = threading.Lock()
_current: LoopThread | None = None


def shared_loop() -> LoopThread:
    """The loop of this process; started at the first call, anew after a fork of the process."""
    global _current
    with _lock:
        if _current is None or _current.pid != os.getpid():
            _current = LoopThread()
        return _current


def wait(future: Waitable[T], timeout_seconds: float | None = None) -> T:
    """Block until future is done; raises its error, or DeadlinePassed.

    Raises ProgramError on the shared loop, where blocking would stop what is waited for.
    """
    left_seconds = timeout_seconds
    if not future.done():
        if shared_loop().is_current():
            raise ProgramError(
                "an async program would block here: use `await s.aget(name)`, `await s.atext()` or "
                "`await branches.ajoin()`"
            )
        # Whoever runs an event loop of its own cannot be put aside: the loop is the thread's.
        if _thread.park is not None and asyncio._get_running_loop() is None:
            _thread.park(future, timeout_seconds)
            left_seconds = 0.0
    try:
        return future.result(left_seconds)
    except TimeoutError:
        if future.done():
            raise  # the error of what was waited for
        raise DeadlinePassed(f"no value within {timeout_seconds} seconds") from None


def set_parking(park: Park | None) -> None:
    """In this thread, let wait call park(future, timeout_seconds) instead of blocking.

    park returns when future is done or the time has passed.
    """
    _thread.park = park


async def wait_async(future: Waitable[T], timeout_seconds: float | None = None) -> T:
    """The same on the caller's event loop. Cancelling the wait does not cancel future."""
    if not future.done():
        here: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        future.add_done_callback(lambda _: _wake(here))
        if timeout_seconds is None:
            await here
            return future.result()
        try:
            async with asyncio.timeout(timeout_seconds):
                await here
        except TimeoutError:
            raise DeadlinePassed(f"no value within {timeout_seconds} seconds") from None
    return future.result()


def _wake(here: asyncio.Future[None]) -> None:
    loop = here.get_loop()
    if asyncio._get_running_loop() is loop:
        _set(here)
        return
    with suppress(RuntimeError):  # that loop is closed: nobody waits any more
        loop.call_soon_threadsafe(_set, here)


def _set(here: asyncio.Future[None]) -> None:
    if not here.done():
        here.set_result(None)
