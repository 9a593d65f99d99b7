"""Nothing hangs and nothing is swallowed: every wait ends with a value, an error or a deadline."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from support.fake_language_backend import FakeBackend

from runtime import ProgramState, assistant, function, gen, select, user
from runtime.lang.errors import (
    BackendError,
    DeadlinePassed,
    LanguageError,
    ProgramCancelled,
    ProgramError,
    Unsupported,
)
from runtime.lang.transcript import Prompt


def _refuse(prompt: Prompt) -> str:
    raise BackendError("no such schema", status_code=400)


def test_an_error_of_the_backend_comes_out_of_the_run_and_of_what_it_leaves_unset() -> None:
    seen: list[ProgramState] = []

    @function
    def program(s: ProgramState) -> None:
        seen.append(s)
        s += gen("a")
        s += gen("b")

    with pytest.raises(BackendError, match="no such schema"):
        program.run(backend=FakeBackend(_refuse, delay_seconds=0.01))
    for name in ("a", "b"):
        with pytest.raises(BackendError, match="no such schema"):
            seen[0][name]
    with pytest.raises(BackendError):
        seen[0].text()
    with pytest.raises(BackendError):
        list(seen[0].text_iter())


def test_adding_to_a_state_that_has_failed_raises_at_once() -> None:
    @function
    def program(s: ProgramState) -> None:
        s += gen("a")
        with pytest.raises(BackendError):
            s.sync()
        with pytest.raises(BackendError):
            s += "more"

    with pytest.raises(BackendError):
        program.run(backend=FakeBackend(_refuse))


def test_an_exception_of_the_program_ends_its_calls_and_is_what_variables_tell() -> None:
    seen: list[ProgramState] = []
    backend = FakeBackend(delay_seconds=10)

    @function
    def program(s: ProgramState) -> None:
        seen.append(s)
        s += gen("a")
        time.sleep(0.05)
        raise ValueError("mine")

    started = time.monotonic()
    with pytest.raises(ValueError, match="mine"):
        program.run(backend=backend)
    with pytest.raises(ValueError, match="mine"):
        seen[0]["a"]
    with pytest.raises(ValueError, match="mine"):
        seen[0]["never written"]

    assert time.monotonic() - started < 5
    assert backend.num_cancelled == 1


@pytest.mark.parametrize("is_async", [False, True])
def test_an_exception_of_a_streamed_program_reaches_all_readers(is_async: bool) -> None:
    @function
    def plain(s: ProgramState) -> None:
        s += "text" + gen("a")
        s["a"]
        raise ValueError("mine")

    @function
    async def coroutine(s: ProgramState) -> None:
        s += "text" + gen("a")
        await s.aget("a")
        raise ValueError("mine")

    state = (coroutine if is_async else plain).run(backend=FakeBackend(), stream=True)

    with pytest.raises(ValueError, match="mine"):
        state["b"]
    with pytest.raises(ValueError, match="mine"):
        list(state.text_iter())
    with pytest.raises(ValueError, match="mine"):
        state.text()


def test_a_run_ends_at_its_deadline() -> None:
    backend = FakeBackend(delay_seconds=30)

    @function
    def program(s: ProgramState) -> None:
        s += gen("a")
        s["a"]

    started = time.monotonic()
    with pytest.raises(DeadlinePassed, match=r"within 0.1 seconds"):
        program.run(backend=backend, timeout_seconds=0.1)

    assert time.monotonic() - started < 5
    assert backend.num_cancelled == 1


def test_a_call_ends_when_the_backend_takes_too_long() -> None:
    @function
    def program(s: ProgramState) -> None:
        s += gen("a")

    with pytest.raises(DeadlinePassed, match="the fake backend did not answer within 0.05"):
        program.run(backend=FakeBackend(delay_seconds=30, timeout_seconds=0.05))


def test_a_wait_with_a_deadline_leaves_the_state_as_it_is() -> None:
    @function
    def program(s: ProgramState) -> str:
        s += gen("a")
        with pytest.raises(DeadlinePassed):
            s.get_var("a", timeout_seconds=0.01)
        return str(s["a"])

    assert program.run(backend=FakeBackend(delay_seconds=0.1)).ret_value == "<out>"


def test_cancelling_the_task_ends_the_calls() -> None:
    backend = FakeBackend(delay_seconds=30)
    seen: list[ProgramState] = []

    @function
    async def program(s: ProgramState) -> None:
        seen.append(s)
        s += gen("a")
        await s.aget("a")

    async def use() -> None:
        task = asyncio.create_task(program.arun(backend=backend))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(use())

    with pytest.raises(ProgramCancelled):
        seen[0]["a"]
    assert backend.num_cancelled == 1


def test_a_state_may_be_cancelled_by_its_reader() -> None:
    @function
    def program(s: ProgramState) -> None:
        s += gen("a")

    state = program.run(backend=FakeBackend(delay_seconds=30), stream=True)
    state.cancel()

    for read in (lambda: state["a"], lambda: state["b"], state.text):
        with pytest.raises(ProgramCancelled):
            read()


def test_readers_do_not_wait_for_a_function_that_is_busy_with_something_else() -> None:
    release = threading.Event()

    @function
    def program(s: ProgramState) -> None:
        s += gen("a")
        release.wait(10)
        s += gen("b")

    started = time.monotonic()
    late = program.run(backend=FakeBackend(), stream=True, timeout_seconds=0.1)
    reads: list[Callable[[], Any]] = [lambda: late["b"], late.text, lambda: list(late.text_iter())]
    for read in reads:
        with pytest.raises(DeadlinePassed):
            read()
    cancelled = program.run(backend=FakeBackend(), stream=True)
    cancelled.cancel()
    with pytest.raises(ProgramCancelled):
        cancelled.text()

    assert time.monotonic() - started < 5
    release.set()


def test_a_defect_of_a_backend_is_an_error_like_any_other() -> None:
    def broken(prompt: Prompt) -> str:
        raise ZeroDivisionError("a defect")

    @function
    def program(s: ProgramState) -> None:
        s += gen("a")

    with pytest.raises(ZeroDivisionError, match="a defect"):
        program.run(backend=FakeBackend(broken))


def _plain(s: ProgramState) -> None:
    s += "x" + gen("a")


def _chat(s: ProgramState) -> None:
    s += user("x")
    s += assistant(gen("a"))


def _prefilled(s: ProgramState) -> None:
    s += user("x")
    s += assistant("Well, " + gen("a"))


def _select(s: ProgramState) -> None:
    s += "x" + select("a", ["b", "c"])


def _regex(s: ProgramState) -> None:
    s += "x" + gen("a", regex="[0-9]")


def _logprobs(s: ProgramState) -> None:
    s += "x" + gen("a", return_logprob=True)


def _relative(s: ProgramState) -> None:
    s += "x" + select("a", ["b", "c"], choices_method="unconditional_likelihood_normalized")


def _prompt_logprobs(s: ProgramState) -> None:
    s += "x" + gen("a", logprob_start_len=0)


def _in_user(s: ProgramState) -> None:
    s += user(gen("a"))


@pytest.mark.parametrize(
    ("body", "lacks", "words"),
    [
        (_plain, {"goes_on_from_text": False}, "takes messages only"),
        (_chat, {"takes_messages": False}, "takes plain text only"),
        (_prefilled, {"goes_on_in_messages": False}, "whole messages"),
        (_select, {"scores_choices": False}, "cannot score choices"),
        (_regex, {"sampling_fields": frozenset()}, "has no regex"),
        (_relative, {"scores_unconditionally": False}, "cannot compare choices by unconditional"),
        (_logprobs, {"gives_logprobs": False}, "no log-probabilities"),
        (_prompt_logprobs, {"gives_prompt_logprobs": False}, "by logprob_start_len"),
        (_in_user, {"goes_on_in_messages": False}, "stands in user"),
    ],
)
def test_what_a_backend_cannot_do_is_refused_before_any_call(
    body: Callable[..., Any], lacks: dict[str, Any], words: str
) -> None:
    backend = FakeBackend(**lacks)

    with pytest.raises(Unsupported, match=words):
        function(body).run(backend=backend)

    assert backend.log == []


def _text_outside(s: ProgramState) -> None:
    s += user("x")
    s += "y"


def _gen_outside(s: ProgramState) -> None:
    s += user("x")
    s += gen("a")


def _role_after_text(s: ProgramState) -> None:
    s += "y"
    s += user("x")


def _nested(s: ProgramState) -> None:
    with s.user():
        s += assistant("x")


def _number(s: ProgramState) -> None:
    s += 3


def _none(s: ProgramState) -> None:
    s += None


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (_text_outside, "outside a role"),
        (_gen_outside, r"write assistant\(gen"),
        (_role_after_text, "comes after text outside a role"),
        (_nested, "roles do not nest"),
        (_number, r"type int .* write str\(...\)"),
        (_none, "type NoneType"),
    ],
)
def test_misuse_is_told_where_it_happens(body: Callable[..., Any], words: str) -> None:
    with pytest.raises(ProgramError, match=words):
        function(body).run(backend=FakeBackend())


def test_arguments_that_do_not_fit_are_named() -> None:
    @function
    def program(s: ProgramState, topic: str) -> None:
        s += topic

    with pytest.raises(LanguageError, match="missing a required argument: 'topic'"):
        program.run(backend=FakeBackend())
    with pytest.raises(LanguageError, match="no field 'temprature'; did you mean temperature"):
        program.run("x", temprature=1, backend=FakeBackend())
    with pytest.raises(LanguageError, match="no field 'num_threads'; run_batch has concurrency"):
        program.run_batch([{"topic": "x"}], num_threads=2, backend=FakeBackend())


def test_a_function_that_waits_for_something_else_ends_at_the_deadline_too() -> None:
    release = threading.Event()

    @function
    def stuck(s: ProgramState) -> None:
        release.wait(20)

    @function
    async def asleep(s: ProgramState) -> None:
        await asyncio.sleep(20)

    started = time.monotonic()
    for run in (
        lambda: stuck.run_batch([()], backend=FakeBackend(), timeout_seconds=0.1),
        lambda: asyncio.run(stuck.arun(backend=FakeBackend(), timeout_seconds=0.1)),
        lambda: asleep.run(backend=FakeBackend(), timeout_seconds=0.1),
        lambda: asleep.run(backend=FakeBackend(), timeout_seconds=0.1, stream=True).text(),
    ):
        with pytest.raises(DeadlinePassed, match=r"within 0\.\d+ seconds"):
            run()
    assert time.monotonic() - started < 5.0
    release.set()


def test_a_timeout_error_of_the_function_itself_stays_what_it_is() -> None:
    @function
    async def program(s: ProgramState) -> None:
        raise TimeoutError("mine")

    with pytest.raises(TimeoutError, match="mine") as caught:
        program.run(backend=FakeBackend(), timeout_seconds=60)
    assert not isinstance(caught.value, DeadlinePassed)


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), "5", True])
def test_a_time_that_no_run_could_end_in_is_refused(seconds: Any) -> None:
    backend = FakeBackend()

    for run in (
        lambda: function(_plain).run(backend=backend, timeout_seconds=seconds),
        lambda: function(_plain).run_batch([()], backend=backend, timeout_seconds=seconds),
    ):
        with pytest.raises(ProgramError, match="timeout_seconds is"):
            run()

    assert backend.log == []


def test_a_wait_of_no_time_at_all_is_one_look() -> None:
    @function
    def program(s: ProgramState) -> str:
        s += gen("a")
        for seconds in (0, -3):
            with pytest.raises(DeadlinePassed):
                s.get_var("a", timeout_seconds=seconds)
        s.sync()
        return str(s.get_var("a", timeout_seconds=0))

    state = program.run(backend=FakeBackend(delay_seconds=0.1))

    assert state.ret_value == "<out>"
