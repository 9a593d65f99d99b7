"""Which native requests a program's calls become."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from runtime.lang.backends.native_calls import NativeCalls
from runtime.lang.errors import BackendError, ProgramError
from runtime.lang.expressions import LogprobRequest
from runtime.lang.sampling import Sampling
from runtime.lang.transcript import Message, Prompt

MERGED = {"nn": 1000}  # two letters that are one token where they meet


class FakeTransport:
    """A token is a letter's code, but for MERGED; a message is role, letters, 0."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.renders = 0
        self.num_encoded_chars = 0
        self.fails = False

    async def generate(self, body: dict[str, Any]) -> list[dict[str, Any]]:
        self.bodies.append(body)
        if "logprob_start_len" not in body or "text" in body:
            return [{"text": "out", "meta_info": {}}]
        replies = []
        for ids, start in zip(body["input_ids"], body["logprob_start_len"], strict=True):
            triples = [[-float(one) if i else None, one, None] for i, one in enumerate(ids)]
            replies.append({"text": "", "meta_info": {"input_token_logprobs": triples[start:]}})
        return replies

    async def stream(self, body: dict[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        yield (await self.generate(body))[0]

    async def encode(self, texts: list[str], add_special_tokens: bool) -> list[list[int]]:
        self.num_encoded_chars += sum(len(text) for text in texts)
        return [([1] if add_special_tokens else []) + _ids(text) for text in texts]

    async def encode_messages(
        self, messages: list[dict[str, str]], add_generation_prompt: bool
    ) -> list[int]:
        self.renders += 1
        await asyncio.sleep(0)
        if self.fails:
            raise BackendError("the model has no chat template", status_code=400)
        ids = [2]
        for one in messages:
            ids += [*_ids(one["role"][0]), *_ids(one["content"]), 0]
        return ids + (_ids("a") if add_generation_prompt else [])


def _ids(text: str) -> list[int]:
    if len(text) >= 2 and text[-2:] in MERGED:
        return [*_ids(text[:-2]), MERGED[text[-2:]]]
    return [ord(letter) for letter in text]


def test_plain_text_is_sent_as_it_is_with_what_the_gen_sets() -> None:
    transport = FakeTransport()
    sampling = Sampling(max_new_tokens=5, stop=("a", "b"), logit_bias={"7": 1.0})

    asyncio.run(NativeCalls(transport).generate(Prompt("hi"), sampling, LogprobRequest(3, 0, True)))

    assert transport.bodies == [
        {
            "text": "hi",
            "sampling_params": {"max_new_tokens": 5, "stop": ["a", "b"], "logit_bias": {"7": 1.0}},
            "return_logprob": True,
            "top_logprobs_num": 3,
            "return_text_in_logprobs": True,
            "logprob_start_len": 0,
        }
    ]


@pytest.mark.parametrize(
    ("role", "ids"),
    [("assistant", [2, 117, 113, 0, 97, 120]), ("user", [2, 117, 113, 0, 117, 120])],
)
def test_messages_become_ids_that_end_in_the_open_message(role: str, ids: list[int]) -> None:
    transport = FakeTransport()
    prompt = Prompt("x", (Message("user", "q"),), role)

    asyncio.run(NativeCalls(transport).generate(prompt, Sampling(), None))

    assert transport.bodies[0]["input_ids"] == ids


def test_a_conversation_is_rendered_once_for_all_that_go_on_from_it() -> None:
    transport = FakeTransport()
    prompt = Prompt("", (Message("user", "q"),), "assistant")

    async def use() -> None:
        calls = NativeCalls(transport)
        await asyncio.gather(*(calls.generate(prompt, Sampling(), None) for _ in range(20)))

    asyncio.run(use())

    assert transport.renders == 1


def test_a_failed_rendering_is_not_remembered() -> None:
    transport = FakeTransport()
    prompt = Prompt("", (Message("user", "q"),), "assistant")

    async def use() -> None:
        calls = NativeCalls(transport)
        transport.fails = True
        with pytest.raises(BackendError, match="no chat template"):
            await calls.generate(prompt, Sampling(), None)
        transport.fails = False
        await calls.generate(prompt, Sampling(), None)

    asyncio.run(use())

    assert len(transport.bodies) == 1


def test_choices_are_scored_in_one_call_from_where_they_differ_from_the_prompt() -> None:
    transport = FakeTransport()

    scores = asyncio.run(NativeCalls(transport).score(Prompt("pq"), ("a", "bc"), False))

    (body,) = transport.bodies
    assert body["input_ids"] == [[1, 112, 113, 97], [1, 112, 113, 98, 99]]
    assert body["logprob_start_len"] == [3, 3]
    assert body["sampling_params"]["max_new_tokens"] == 0
    assert [one.logprobs for one in scores] == [(-97.0,), (-98.0, -99.0)]
    assert [one.token_ids for one in scores] == [(97,), (98, 99)]


def test_a_choice_that_merges_with_the_end_of_the_prompt_is_scored_with_it() -> None:
    transport = FakeTransport()

    scores = asyncio.run(NativeCalls(transport).score(Prompt("pn"), ("n", "x"), False))

    assert [one.token_ids for one in scores] == [(1000,), (120,)]
    assert transport.bodies[0]["logprob_start_len"] == [2, 3]


@pytest.mark.parametrize("end", ["n", "y z", "  "])
def test_a_long_prompt_is_tokenised_once_for_all_choices(end: str) -> None:
    transport = FakeTransport()
    prompt = "some words of a long prompt " * 40 + end
    choices = ("n", " x", "other")

    scores = asyncio.run(NativeCalls(transport).score(Prompt(prompt), choices, False))

    (body,) = transport.bodies
    assert body["input_ids"] == [[1, *_ids(prompt + one)] for one in choices]
    assert [one.token_ids for one in scores][1:] == [(32, 120), tuple(_ids("other"))]
    assert transport.num_encoded_chars < len(prompt) + 4 * 200


def test_a_tokenizer_that_needs_the_whole_prompt_gets_it() -> None:
    class Marking(FakeTransport):
        """Its first token is another one at the beginning of each text."""

        async def encode(self, texts: list[str], add_special_tokens: bool) -> list[list[int]]:
            return [[900 + ids[0], *ids[1:]] for ids in map(_ids, texts)]

    transport = Marking()
    prompt = "some words of a long prompt " * 40 + "end"

    asyncio.run(NativeCalls(transport).score(Prompt(prompt), ("x",), False))

    assert transport.bodies[0]["input_ids"] == [[900 + ord("s"), *_ids(prompt[1:] + "x")]]


def test_unconditional_scores_come_with_the_same_call() -> None:
    transport = FakeTransport()

    scores = asyncio.run(NativeCalls(transport).score(Prompt("p"), ("ab",), True))

    (body,) = transport.bodies
    assert body["input_ids"] == [[1, 112, 97, 98], [97, 98]]
    assert scores[0].logprobs == (-97.0, -98.0)
    assert scores[0].unconditional == (0.0, -98.0)


def test_a_select_in_a_message_scores_after_its_text() -> None:
    transport = FakeTransport()
    prompt = Prompt("t", (Message("user", "q"),), "assistant")

    asyncio.run(NativeCalls(transport).score(prompt, ("a",), False))

    assert transport.bodies[0]["input_ids"] == [[2, 117, 113, 0, 97, 116, 97]]
    assert transport.bodies[0]["logprob_start_len"] == [6]


def test_a_choice_without_a_token_of_its_own_is_refused() -> None:
    class Swallowing(FakeTransport):
        async def encode(self, texts: list[str], add_special_tokens: bool) -> list[list[int]]:
            return [[1, 2] for _ in texts]

    with pytest.raises(ProgramError, match="choice 'a' has no token of its own"):
        asyncio.run(NativeCalls(Swallowing()).score(Prompt("p"), ("a",), False))
