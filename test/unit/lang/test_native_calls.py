"""Which native requests a program's calls become."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from runtime.lang.backends.native_calls import Joined, NativeCalls
from runtime.lang.backends.protocol import Output
from runtime.lang.choices import ChoicesMethod
from runtime.lang.errors import BackendError
from runtime.lang.expressions import LogprobRequest
from runtime.lang.sampling import Sampling
from runtime.lang.tools import ToolCall, tool_offer
from runtime.lang.transcript import Message, Prompt

METHOD = ChoicesMethod.TOKEN_LENGTH_NORMALIZED


class FakeTransport:
    """A token is a letter's code; a message is role, letters, 0."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.renders = 0
        self.is_aborted = False
        self.fails = False
        self.refusal: BackendError | None = None

    async def generate(self, body: dict[str, Any]) -> list[dict[str, Any]]:
        if self.refusal is not None:
            raise self.refusal
        self.bodies.append(body)
        return [{"text": "out", "meta_info": {}}]

    async def stream(self, body: dict[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        yield (await self.generate(body))[0]

    async def score(self, body: dict[str, Any]) -> dict[str, Any]:
        """A token's score is minus its id; early exit leaves out a second one."""
        self.bodies.append(body)
        choices = []
        for text in body["choices"]:
            values: list[float | None] = [-float(one) for one in _ids(text)]
            alone = [0.0, *values[1:]] if body["choices_method"].startswith("uncond") else None
            if body["early_exit"]:
                values[1:] = [None] * (len(values) - 1)
            choices.append(
                {"token_ids": _ids(text), "logprobs": values, "unconditional_logprobs": alone}
            )
        finish = {"type": "abort" if self.is_aborted else "length"}
        return {"choices": choices, "meta_info": {"finish_reason": finish}}

    async def chat(self, body: dict[str, Any]) -> dict[str, Any]:
        self.bodies.append(body)
        call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        return {
            "id": "chat-1",
            "choices": [
                {"message": {"content": None, "tool_calls": [call]}, "finish_reason": "tool_calls"},
                {"message": {"content": "no"}, "finish_reason": "stop"},
            ],
            "usage": {"prompt_tokens": 9, "completion_tokens": 4},
        }

    async def pin(self, body: dict[str, Any]) -> None:
        self.bodies.append(body)

    async def encode(self, texts: list[str], add_special_tokens: bool) -> list[list[int]]:
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


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize(
    ("param", "said", "names"),
    [
        ("max_new_tokens", "max_new_tokens is -1; at least 0", "max_tokens is -1; at least 0"),
        ("sampling_params.regex", "sampling_params.regex: no", "regex: no"),
        (None, "my_max_new_tokens, renew_tokens", "my_max_new_tokens, renew_tokens"),
    ],
)
def test_a_refusal_names_fields_as_gen_does(
    streams: bool, param: str | None, said: str, names: str
) -> None:
    transport = FakeTransport()
    transport.refusal = BackendError(said, status_code=400, param=param)

    async def use() -> None:
        calls = NativeCalls(transport)
        if streams:
            async for _ in calls.stream(Prompt("a"), Sampling(), None):
                pass
        else:
            await calls.generate(Prompt("a"), Sampling(), None)

    with pytest.raises(BackendError) as caught:
        asyncio.run(use())

    assert str(caught.value) == names
    assert caught.value.status_code == 400
    assert caught.value.param == (param and names.split()[0].rstrip(":"))


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


def test_choices_are_scored_in_one_call() -> None:
    transport = FakeTransport()
    method = ChoicesMethod.GREEDY_TOKEN_SELECTION

    scores = asyncio.run(NativeCalls(transport).score(Prompt("pq"), ("a", "bc"), method, True))

    assert transport.bodies == [
        {
            "text": "pq",
            "choices": ["a", "bc"],
            "choices_method": "greedy_token_selection",
            "early_exit": True,
        }
    ]
    assert [one.token_ids for one in scores] == [(97,), (98, 99)]
    assert [one.logprobs for one in scores] == [(-97.0,), (-98.0, None)]


def test_unconditional_scores_come_with_the_same_call() -> None:
    transport = FakeTransport()
    method = ChoicesMethod.UNCONDITIONAL_LIKELIHOOD_NORMALIZED

    (score,) = asyncio.run(NativeCalls(transport).score(Prompt("p"), ("ab",), method, False))

    assert len(transport.bodies) == 1
    assert score.unconditional == (0.0, -98.0)


def test_a_select_in_a_message_scores_after_its_text() -> None:
    transport = FakeTransport()
    prompt = Prompt("t", (Message("user", "q"),), "assistant")

    asyncio.run(NativeCalls(transport).score(prompt, ("a",), METHOD, False))

    assert transport.bodies[0]["input_ids"] == [2, 117, 113, 0, 97]
    assert transport.bodies[0]["text"] == "t"


def test_an_aborted_scoring_is_an_error() -> None:
    transport = FakeTransport()
    transport.is_aborted = True

    with pytest.raises(BackendError, match="aborted"):
        asyncio.run(NativeCalls(transport).score(Prompt("p"), ("a",), METHOD, False))


def test_tools_go_by_the_chat_route_with_the_names_of_that_route() -> None:
    transport = FakeTransport()
    tool = {"type": "function", "function": {"name": "f"}}
    offer = tool_offer([tool], "required")
    sampling = Sampling(max_new_tokens=5, top_k=3, n=2)
    called = Message("assistant", "", calls=(ToolCall("c0", "f", "{}"),))
    messages = (Message("user", "q"), called, Message("tool", "7", call_id="c0"))

    outputs = asyncio.run(
        NativeCalls(transport).call_tools(Prompt("", messages, "assistant"), sampling, offer)
    )

    assert transport.bodies == [
        {
            "messages": [
                {"role": "user", "content": "q"},
                {"role": "assistant", "content": None, "tool_calls": [called.calls[0].wire()]},
                {"role": "tool", "content": "7", "tool_call_id": "c0"},
            ],
            "max_tokens": 5,
            "top_k": 3,
            "n": 2,
            "tools": [tool],
            "tool_choice": "required",
        }
    ]
    counts = {"id": "chat-1", "prompt_tokens": 9, "completion_tokens": 4}
    assert outputs == [
        Output(
            "",
            {**counts, "finish_reason": {"type": "tool_calls"}},
            0,
            (ToolCall("c1", "f", "{}"),),
        ),
        Output("no", {**counts, "finish_reason": {"type": "stop"}}, 1),
    ]


@pytest.mark.parametrize(
    ("prompt", "place"),
    [
        (Prompt("hi"), {"text": "hi"}),
        (
            Prompt("x", (Message("user", "q"),), "assistant"),
            {"input_ids": [2, 117, 113, 0, 97, 120]},
        ),
    ],
)
def test_a_pin_is_of_what_a_call_would_be_of(prompt: Prompt, place: dict[str, Any]) -> None:
    transport = FakeTransport()

    asyncio.run(NativeCalls(transport).pin(prompt, 7.5))

    assert transport.bodies == [{**place, "ttl_seconds": 7.5}]


def test_replies_that_bring_only_what_is_new_are_joined_by_sample() -> None:
    replies = [("o", 0), ("t", 1), ("ne", 0), ("wo", 1)]
    joined, whole = Joined(True), Joined(False)

    texts = [joined.reply({"text": text, "index": i})["text"] for text, i in replies]

    assert texts == ["o", "t", "one", "two"]
    assert whole.reply({"text": "one"}) == {"text": "one"}
