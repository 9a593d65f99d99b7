"""A value to come, which is set once: what readers in any thread or event loop wait for.

Does what the language needs of concurrent.futures.Future. That one holds a condition, its lock and
six more objects, which a program with thousands of outputs pays for with each of them, and the
collector again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar, cast

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Waitable(Protocol[T_co]):
    """A Promise, or a Future of concurrent.futures."""

    def done(self) -> bool:
        """Whether result returns or raises at once."""

    def result(self, timeout: float | None = None) -> T_co:
        """Block until done; return the value or raise the error, or TimeoutError."""

    def add_done_callback(self, fn: Callable[[Any], object], /) -> None:
        """Call fn once when done, in the thread that sets the value, or now."""


class Promise(Generic[T]):
    """One value or one error, set by one thread at one time; any number of threads may wait."""

    __slots__ = ("_callbacks", "_error", "_is_done", "_value")

    def __init__(self) -> None:
        self._callbacks: list[Callable[[Promise[T]], object]] = []
        self._error: BaseException | None = None
        self._value: T | None = None
        self._is_done = False

    def done(self) -> bool:
        """Whether there is a value or an error."""
        return self._is_done

    def set_result(self, value: T) -> None:
        """Give the value, and call the callbacks."""
        assert not self._is_done, "a promise is kept once"
        self._value = value
        self._is_done = True
        self._call_back()

    def set_exception(self, error: BaseException) -> None:
        """End with error in the place of a value."""
        assert not self._is_done, "a promise is kept once"
        self._error = error
        self._is_done = True
        self._call_back()

    def exception(self) -> BaseException | None:
        """The error, None if there is a value or nothing yet."""
        return self._error

    def result(self, timeout: float | None = None) -> T:
        """Block until done; return the value or raise the error, or TimeoutError."""
        if not self._is_done and (timeout is None or timeout > 0):
            self._block(timeout)
        if not self._is_done:
            raise TimeoutError
        if self._error is not None:
            raise self._error
        return cast(T, self._value)

    def add_done_callback(self, fn: Callable[[Promise[T]], object], /) -> None:
        """Call fn once when done, in the thread that sets the value, or now."""
        self._callbacks.append(fn)
        if self._is_done:  # perhaps since before the line above
            self._call_back()

    def _call_back(self) -> None:
        # Two threads may be here at once: each callback is taken by one of them, as pop is atomic.
        while self._callbacks:
            try:
                fn = self._callbacks.pop(0)
            except IndexError:
                return
            fn(self)

    def _block(self, timeout: float | None) -> None:
        lock = threading.Lock()
        lock.acquire()

        def wake(_: Promise[T]) -> None:
            lock.release()

        self.add_done_callback(wake)
        if not lock.acquire(timeout=-1 if timeout is None else timeout) and wake in self._callbacks:
            try:
                self._callbacks.remove(wake)
            except ValueError:
                return  # done just now
