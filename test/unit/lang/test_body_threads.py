"""Plain functions that wait in the language share few threads."""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time

import pytest
from support.fake_language_backend import FakeBackend

from runtime import ProgramState, function, gen
from runtime.lang.body_threads import MAX_THREADS, BodyThreads
from runtime.lang.errors import DeadlinePassed

NUM_STATES = 6 * MAX_THREADS


def test_many_states_read_at_once_in_few_threads() -> None:
    at_once = NUM_STATES
    threads: set[int] = set()

    @function
    def program(s: ProgramState, number: int) -> int:
        s += f"{number}" + gen("a")
        threads.add(threading.get_ident())
        assert s["a"] == "<out>"
        s += gen("b")
        return number if s["b"] == "<out>" else -1

    backend = FakeBackend(delay_seconds=0.05)
    items = [(i,) for i in range(at_once)]
    states = program.run_batch(items, backend=backend, concurrency=at_once)

    assert [one.ret_value for one in states] == list(range(at_once))
    assert backend.most_running == at_once
    assert len(threads) <= MAX_THREADS


def test_functions_keep_their_context_across_waits() -> None:
    name: contextvars.ContextVar[int] = contextvars.ContextVar("name")

    @function
    def program(s: ProgramState, number: int) -> int:
        name.set(number)
        for _ in range(3):
            s += gen("a")
            s.sync()
        return name.get()

    items = [(i,) for i in range(NUM_STATES)]
    states = program.run_batch(items, backend=FakeBackend(), concurrency=NUM_STATES)

    assert [one.ret_value for one in states] == list(range(NUM_STATES))


def test_an_exception_that_is_being_handled_stays_with_its_function() -> None:
    @function
    def program(s: ProgramState, number: int) -> str:
        try:
            raise ValueError(str(number))
        except ValueError:
            s += gen("a")
            s.sync()
            try:
                raise
            except ValueError as error:
                return str(error)

    items = [(i,) for i in range(NUM_STATES)]
    states = program.run_batch(items, backend=FakeBackend(), concurrency=NUM_STATES)

    assert [one.ret_value for one in states] == [str(i) for i in range(NUM_STATES)]


def test_the_error_of_one_function_is_its_own() -> None:
    @function
    def program(s: ProgramState, number: int) -> int:
        s += gen("a")
        s.sync()
        if number % 2:
            raise KeyError(number)
        return number

    items = [(i,) for i in range(NUM_STATES)]
    results = program.run_batch(
        items, backend=FakeBackend(), concurrency=NUM_STATES, on_error="return"
    )

    for index, one in enumerate(results):
        assert (one.args if index % 2 else one.ret_value) == ((index,) if index % 2 else index)


def test_waits_of_functions_that_share_a_thread_end_at_their_deadlines() -> None:
    @function
    def program(s: ProgramState, number: int) -> float:
        s += gen("a")
        began = time.monotonic()
        with pytest.raises(DeadlinePassed, match="no value within 0.1 seconds"):
            s.get_var("a", timeout_seconds=0.1)
        waited = time.monotonic() - began
        s.sync()
        return waited

    items = [(i,) for i in range(NUM_STATES)]
    states = program.run_batch(
        items, backend=FakeBackend(delay_seconds=1.0), concurrency=NUM_STATES
    )

    assert 0.1 <= min(one.ret_value for one in states)
    assert max(one.ret_value for one in states) < 0.9


def test_every_run_of_a_batch_ends_at_its_deadline() -> None:
    @function
    def program(s: ProgramState, number: int) -> None:
        s += gen("a")
        s.sync()

    started = time.monotonic()
    results = program.run_batch(
        [(i,) for i in range(NUM_STATES)],
        backend=FakeBackend(delay_seconds=30),
        concurrency=NUM_STATES,
        timeout_seconds=0.3,
        on_error="return",
    )

    assert all(isinstance(one, DeadlinePassed) for one in results)
    assert time.monotonic() - started < 5.0


def test_up_to_the_bound_functions_do_not_wait_for_each_other() -> None:
    together = threading.Barrier(MAX_THREADS, timeout=10)

    @function
    def program(s: ProgramState, number: int) -> None:
        s += gen("a")
        s.sync()
        together.wait()  # a lock, a request, a computation: not the language's to put aside

    items = [(i,) for i in range(MAX_THREADS)]

    assert len(program.run_batch(items, backend=FakeBackend(), concurrency=MAX_THREADS)) == len(
        items
    )


def test_a_function_that_runs_an_event_loop_of_its_own_blocks_only_itself() -> None:
    @function
    def inner(s: ProgramState) -> None:
        s += gen("a")
        s.sync()

    @function
    def program(s: ProgramState, number: int) -> str:
        async def with_a_blocking_wait() -> str:
            s.sync()
            return str((await inner.arun(backend=backend))["a"])

        s += gen("a")
        return asyncio.run(with_a_blocking_wait())

    backend = FakeBackend(delay_seconds=0.01)
    items = [(i,) for i in range(2 * MAX_THREADS)]
    states = program.run_batch(items, backend=backend, concurrency=2 * MAX_THREADS)

    assert {one.ret_value for one in states} == {"<out>"}


def test_threads_end_when_no_function_is_left() -> None:
    before = threading.active_count()
    threads = BodyThreads(4)

    async def three() -> None:
        await asyncio.gather(*(threads.call(lambda: None) for _ in range(3)))

    asyncio.run(three())
    threads.close()

    deadline = time.monotonic() + 5
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() <= before
