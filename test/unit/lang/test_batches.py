"""Batches: order, bounded concurrency, error policies, and the prefix that is computed once."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest
from support.fake_language_backend import FakeBackend

from runtime import ProgramState, assistant, function, gen, system, user
from runtime.lang.errors import BackendError, ProgramError
from runtime.lang.transcript import Message, Prompt

PREFIX = "Classify the sentence by its tone, as one of good, bad and neutral. " * 2


@function
def classify(s: ProgramState, sentence: str) -> None:
    s += PREFIX + "Sentence: " + sentence + "\nTone:"
    s += gen("tone")


def _last_word(prompt: Prompt) -> str:
    if "bad" in prompt.text.split("Sentence:")[1]:
        raise BackendError("refused")
    return prompt.text.split()[-2]


def test_results_come_in_order_and_no_more_run_at_once_than_allowed() -> None:
    backend = FakeBackend(_last_word, delay_seconds=0.01)
    items = [{"sentence": f"word{i}"} for i in range(20)]

    states = classify.run_batch(items, backend=backend, concurrency=4)

    assert [state["tone"] for state in states] == [f"word{i}" for i in range(20)]
    assert backend.most_running == 4


def test_the_common_prefix_is_computed_once_before_the_first_call() -> None:
    backend = FakeBackend(_last_word)

    classify.run_batch([(f"w{i}",) for i in range(10)], backend=backend, concurrency=5)

    assert backend.log == ["commit", *["generate"] * 10]
    assert backend.commits == [Prompt(PREFIX + "Sentence:")]


def test_the_common_prefix_of_conversations_ends_inside_the_message_that_differs() -> None:
    backend = FakeBackend()

    @function
    def program(s: ProgramState, question: str) -> None:
        s += system(PREFIX)
        s += user("Please answer: " + question)
        s += assistant(gen("a"))

    program.run_batch([("one",), ("two",)], backend=backend)

    assert backend.commits == [Prompt("Please answer:", (Message("system", PREFIX),), "user")]


def test_a_short_common_prefix_is_left_alone() -> None:
    backend = FakeBackend()

    @function
    def program(s: ProgramState, x: str) -> None:
        s += "Hi " + x + gen("a")

    program.run_batch([("1",), ("2",)], backend=backend)

    assert backend.commits == []


def test_a_batch_of_which_only_one_calls_the_model_does_not_wait_for_the_others() -> None:
    @function
    def program(s: ProgramState, calls: bool) -> None:
        s += PREFIX
        if calls:
            s += gen("a")

    started = time.monotonic()
    states = program.run_batch([(True,), (False,)], backend=FakeBackend())

    assert states[0]["a"] == "<out>"
    assert time.monotonic() - started < 5


def test_the_first_error_ends_the_batch_and_names_its_item() -> None:
    backend = FakeBackend(_last_word, delay_seconds=0.01)
    items = [("fine",), ("bad",), *[("fine",)] * 50]

    with pytest.raises(BackendError, match="refused") as caught:
        classify.run_batch(items, backend=backend, concurrency=2)

    assert caught.value.__notes__ == ["in item 1 of the batch"]
    assert len(backend.prompts) < 10


def test_errors_take_the_place_of_their_states_if_asked_for() -> None:
    items = [("fine",), ("bad",), ("good",)]

    results = classify.run_batch(items, backend=FakeBackend(_last_word), on_error="return")

    assert [type(one) for one in results] == [ProgramState, BackendError, ProgramState]


def test_a_batch_inside_a_program_of_a_batch_ends() -> None:
    backend = FakeBackend()

    @function
    def outer(s: ProgramState) -> None:
        inner = classify.run_batch([("x",), ("y",)], backend=backend, concurrency=2)
        s += str(len(inner))

    states = outer.run_batch([()] * 8, backend=backend, concurrency=2)

    assert [state.text() for state in states] == ["2"] * 8


def test_async_programs_of_a_batch_need_no_threads() -> None:
    @function
    async def program(s: ProgramState) -> None:
        s += gen("a")
        await s.aget("a")
        threads.append(threading.active_count())

    threads: list[int] = []
    before = threading.active_count()
    backend = FakeBackend(delay_seconds=0.05)

    program.run_batch([()] * 300, backend=backend, concurrency=300)

    assert backend.most_running == 300
    assert max(threads) - before <= 1


def test_a_batch_may_be_awaited_and_shows_a_bar(capsys: pytest.CaptureFixture[str]) -> None:
    async def use() -> list[ProgramState]:
        items = [("a",), ("b",)]
        backend = FakeBackend(_last_word)
        return await classify.arun_batch(items, backend=backend, progress_bar=True)

    states = asyncio.run(use())

    assert [state["tone"] for state in states] == ["a", "b"]
    assert "2/2" in capsys.readouterr().err


def test_arguments_that_make_no_sense_are_refused() -> None:
    backend = FakeBackend()

    assert classify.run_batch([], backend=backend) == []
    with pytest.raises(ProgramError, match="concurrency is 0"):
        classify.run_batch([("x",)], backend=backend, concurrency=0)
    with pytest.raises(ProgramError, match="item 0 of the batch is of type str"):
        classify.run_batch(["x"], backend=backend)  # type: ignore[list-item]
    with pytest.raises(ProgramError, match="on_error is 'skip'"):
        classify.run_batch([("x",)], backend=backend, on_error="skip")  # type: ignore[arg-type]
