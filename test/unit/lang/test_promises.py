"""Promise: a value that is set once, for readers in any thread."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable

import pytest

from runtime.lang.errors import DeadlinePassed
from runtime.lang.loop_thread import wait, wait_async
from runtime.lang.promise import Promise


def _later(work: Callable[[], object], seconds: float = 0.02) -> None:
    timer = threading.Timer(seconds, work)
    timer.daemon = True
    timer.start()


def test_a_reader_that_waits_gets_the_value_or_the_error() -> None:
    kept: Promise[int] = Promise()
    broken: Promise[int] = Promise()
    _later(lambda: kept.set_result(3))
    _later(lambda: broken.set_exception(ValueError("mine")))

    assert kept.result(5) == 3
    with pytest.raises(ValueError, match="mine"):
        broken.result(5)
    assert (kept.done(), kept.exception()) == (True, None)
    assert wait(kept, 0) == asyncio.run(wait_async(kept, 5)) == 3


@pytest.mark.parametrize("seconds", [-1.0, 0.0, 0.01])
def test_a_wait_that_is_too_short_ends_and_leaves_the_promise_open(seconds: float) -> None:
    promise: Promise[int] = Promise()

    with pytest.raises(TimeoutError):
        promise.result(seconds)
    with pytest.raises(DeadlinePassed, match="no value within"):
        wait(promise, seconds)
    promise.set_result(4)

    assert promise.result(seconds) == 4


def test_a_promise_is_kept_once() -> None:
    promise: Promise[int] = Promise()
    promise.set_result(1)

    with pytest.raises(AssertionError):
        promise.set_result(2)
    with pytest.raises(AssertionError):
        promise.set_exception(ValueError())

    assert promise.result() == 1


def test_callbacks_are_called_once_each_whenever_they_are_added() -> None:
    counts = [0] * 2000
    promises: list[Promise[None]] = [Promise() for _ in counts]

    def count(index: int) -> Callable[[object], None]:
        def add(_: object) -> None:
            counts[index] += 1

        return add

    def keep() -> None:
        for promise in promises:
            promise.set_result(None)

    keeper = threading.Thread(target=keep)
    keeper.start()
    for index, promise in enumerate(promises):
        promise.add_done_callback(count(index))
    keeper.join()

    assert counts == [1] * len(counts)


def test_many_threads_may_wait_for_one_promise() -> None:
    promise: Promise[str] = Promise()
    seen: list[str] = []
    threads = [threading.Thread(target=lambda: seen.append(promise.result(10))) for _ in range(8)]
    for one in threads:
        one.start()
    started = time.monotonic()

    promise.set_result("x")
    for one in threads:
        one.join(10)

    assert seen == ["x"] * 8
    assert time.monotonic() - started < 5
