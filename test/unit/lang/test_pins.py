"""pin_prefix_seconds: what a run or a batch keeps in the backend's cache."""

from __future__ import annotations

import asyncio

import pytest
from support.fake_language_backend import FakeBackend

from runtime import ProgramState, assistant, function, gen, user
from runtime.lang.errors import BackendError, ProgramError, Unsupported
from runtime.lang.transcript import Message, Prompt

RULES = "These are the rules of the house, in the order in which they were made."


@function
def ask(s: ProgramState, question: str) -> None:
    s += RULES + f" Question: {question}" + gen("a") + " and " + gen("b")


def test_a_run_pins_the_prompt_of_its_first_call_before_it() -> None:
    backend = FakeBackend()

    ask.run("Why?", backend=backend, pin_prefix_seconds=60)

    assert backend.pins == [(Prompt(RULES + " Question: Why?"), 60)]
    assert backend.log == ["pin", "generate", "generate"]


def test_a_conversation_is_pinned_up_to_the_open_message() -> None:
    @function
    async def program(s: ProgramState) -> None:
        s += user("Hi.") + assistant(gen("a"))

    backend = FakeBackend()

    asyncio.run(program.arun(backend=backend, pin_prefix_seconds=1.5))

    assert backend.pins == [(Prompt("", (Message("user", "Hi."),), "assistant"), 1.5)]


@pytest.mark.parametrize("concurrency", [1, 4])
def test_a_batch_pins_what_its_prompts_share(concurrency: int) -> None:
    backend = FakeBackend()

    items = [(f"{i}?",) for i in range(5)]
    ask.run_batch(items, backend=backend, pin_prefix_seconds=60, concurrency=concurrency)

    assert backend.pins == [(Prompt(RULES + " Question:"), 60)]
    assert backend.commits == []


def test_a_batch_of_one_pins_its_prompt() -> None:
    backend = FakeBackend()

    asyncio.run(ask.arun_batch([("Why?",)], backend=backend, pin_prefix_seconds=60))

    assert backend.pins == [(Prompt(RULES + " Question: Why?"), 60)]


def test_a_pin_that_is_refused_ends_every_run_that_asked_for_it() -> None:
    backend = FakeBackend()
    backend.pin_error = BackendError("there is no room for pins")

    with pytest.raises(BackendError, match="no room for pins"):
        ask.run("Why?", backend=backend, pin_prefix_seconds=60)
    results = ask.run_batch(
        [("a",), ("b",), ("c",)], backend=backend, pin_prefix_seconds=60, on_error="return"
    )

    assert results == [backend.pin_error] * 3
    assert backend.prompts == []


def test_a_backend_that_cannot_pin_and_a_time_that_is_none_are_refused_before_any_call() -> None:
    backend = FakeBackend(pins_prefixes=False)

    with pytest.raises(Unsupported, match="the fake backend cannot pin"):
        ask.run("Why?", backend=backend, pin_prefix_seconds=60)
    with pytest.raises(Unsupported, match="the fake backend cannot pin"):
        ask.run_batch([("Why?",)], backend=backend, pin_prefix_seconds=60)
    with pytest.raises(ProgramError, match="pin_prefix_seconds is 0; it must be above 0"):
        ask.run("Why?", backend=FakeBackend(), pin_prefix_seconds=0)

    assert backend.log == []
