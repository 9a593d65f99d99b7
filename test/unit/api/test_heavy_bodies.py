"""Bodies made to be heavy: they are refused in time, and nobody else waits for them."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from support.fake_engine import FakeServer
from support.http_calls import OpenCall, events
from support.tool_server import ToolServer

CHAT = "/v1/chat/completions"
HI = [{"role": "user", "content": "hi"}]
# Of the event loop, in its own CPU time; a few tenths on an idle machine. The defects held it for
# minutes.
LONGEST_STALL_SECONDS = 2.0


def body_of(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


def repeated(before: str, item: str, after: str, times: int) -> bytes:
    return f"{before}{','.join([item] * times)}{after}".encode()


HEAVY: dict[str, tuple[str, bytes, int, str | None]] = {
    "prompts": ("/generate", body_of(text=["a"] * 5000), 400, "text"),
    "id prompts": ("/generate", body_of(input_ids=[[1]] * 5000), 400, "input_ids"),
    "completion prompts": ("/v1/completions", body_of(prompt=["a"] * 400_000), 400, "prompt"),
    "values": ("/generate", body_of(text=["a"] * 600_000), 413, None),
    "one long id prompt": ("/generate", body_of(input_ids=[1] * 400_000), 400, "input_ids"),
    "one long text": ("/generate", body_of(text="a b " * 7_000_000), 400, "text"),
    "messages": (CHAT, body_of(messages=HI * 200_000), 400, "messages"),
    "wrong messages": (CHAT, body_of(messages=[1] * 400_000), 400, "messages"),
    "parts": (
        CHAT,
        body_of(messages=[{"role": "user", "content": [{"type": "text", "text": "a"}] * 9000}]),
        400,
        "messages",
    ),
    "tool calls": (
        CHAT,
        body_of(messages=[*HI, {"role": "assistant", "tool_calls": [{}] * 400_000}]),
        400,
        "messages",
    ),
    "long chat": (
        CHAT,
        body_of(messages=[{"role": "user", "content": "a b " * 7_000_000}]),
        400,
        None,
    ),
    "wrong biases": (
        CHAT,
        body_of(messages=HI, logit_bias={str(i): "x" for i in range(400_000)}),
        400,
        "logit_bias",
    ),
    "stop ids": (CHAT, body_of(messages=HI, stop_token_ids=["x"] * 400_000), 400, "stop_token_ids"),
    "sampling params": (
        "/generate",
        repeated('{"text":"a","sampling_params":[', '{"n":"x"}', "]}", 400_000),
        400,
        "sampling_params",
    ),
    "id lists per prompt": (
        "/generate",
        body_of(text=["a"] * 4000, return_logprob=True, token_ids_logprob=[[1]] * 4000 + [[]]),
        400,
        "token_ids_logprob",
    ),
    "tokenize": ("/tokenize", body_of(prompt="a b " * 7_000_000), 400, "prompt"),
    "tokenize many": ("/tokenize", body_of(prompt=["a"] * 5000), 400, "prompt"),
    "tokenize chat": ("/v1/tokenize", body_of(messages=HI * 200_000), 400, "messages"),
    "detokenize": ("/detokenize", body_of(tokens=[999] * 400_000), 400, "tokens"),
    "detokenize many": ("/detokenize", body_of(tokens=[1] * 600_000), 413, None),
}


async def longest_stall(clock: Callable[[], float] = time.thread_time) -> float:
    longest, before = 0.0, clock()
    try:
        while True:
            await asyncio.sleep(0)
            now = clock()
            longest, before = max(longest, now - before), now
    except asyncio.CancelledError:
        return longest


@pytest.mark.parametrize("name", HEAVY)
def test_a_heavy_body_is_refused_without_keeping_others_out(name: str) -> None:
    path, body, status, param = HEAVY[name]
    server = FakeServer()

    async def go() -> tuple[Any, float]:
        watch = asyncio.ensure_future(longest_stall())
        await asyncio.sleep(0)
        async with server.http() as http:
            reply = await http.post(path, content=body)
        watch.cancel()
        return reply, await watch

    reply, stall = asyncio.run(go())

    assert reply.status_code == status, reply.text[:300]
    error = reply.json()["error"]
    if param is not None:
        assert error["param"].split(".")[0] == param, error
    assert len(error["message"]) < 500
    assert not server.engine.requests
    assert stall < LONGEST_STALL_SECONDS


@pytest.mark.parametrize("padding", [0, 100_000])
def test_a_body_means_the_same_however_large_it_is(padding: int) -> None:
    server = ToolServer("{}")
    names = [f"{'zax'[i % 3]}{i}é" for i in range(30)]
    schema = {"properties": {name: {"maximum": 10**30, "const": 0.25} for name in names}}
    body = json.dumps(
        {
            "messages": [{"role": "user", "content": [{"type": "text", "text": "hi \U0001f600"}]}],
            "temperature": 0,
            "logit_bias": {"97": -1},
            "stop": ["x"],
            "foreign": {"a": [None]},
            "response_format": {"type": "json_schema", "json_schema": {"schema": schema}},
        }
    )

    reply = server.call("POST", CHAT, content=body + " " * padding)

    assert reply.status_code == 200, reply.text
    ((spec, param),) = server.grammars.checked
    assert spec.text == json.dumps(schema, ensure_ascii=False, separators=(",", ":"))
    assert param == "response_format.json_schema.schema"
    assert "hi \U0001f600" in server.prompt()
    (request,) = server.engine.requests
    sampling = request.sampling
    assert (sampling.temperature, sampling.stop) == (0, ("x",))
    assert sampling.logit_bias == ((97, -1.0),)


def test_what_tokenize_takes_at_most_is_worked_on_beside_the_event_loop() -> None:
    server = FakeServer()
    text = "a b " * 250_000

    async def go() -> tuple[Any, float, float]:
        async with server.http() as http:
            watch = asyncio.ensure_future(longest_stall(time.monotonic))
            began = time.monotonic()
            reply = await http.post("/tokenize", json={"prompt": text})
            seconds = time.monotonic() - began
            watch.cancel()
            return reply, seconds, await watch

    reply, seconds, stall = asyncio.run(go())

    assert reply.json()["count"] == len(text)
    assert stall < 0.5 * seconds


@pytest.mark.parametrize("num_top", [0, 40])
def test_a_stream_with_logprobs_sends_bytes_in_proportion_to_its_answer(num_top: int) -> None:
    server = FakeServer()
    server.engine.output = lambda request: [97] * 400
    body = {
        "text": "hi",
        "sampling_params": {"max_new_tokens": 400},
        "return_logprob": True,
        "top_logprobs_num": num_top,
    }

    whole = server.call("POST", "/generate", json=body)
    streamed = server.call("POST", "/generate", json={**body, "stream": True})
    *parts, done = events(streamed.text)

    assert done == "[DONE]"
    assert parts[-1]["text"] == whole.json()["text"]
    for name in ("output_token_logprobs", "output_top_logprobs"):
        assert parts[-1]["meta_info"].get(name) == whole.json()["meta_info"].get(name)
    assert len(parts) > 20, "the stream still shows progress"
    if num_top:
        assert len(streamed.content) < 25 * len(whole.content)
    for earlier, later in zip(parts, parts[1:], strict=False):
        assert later["text"].startswith(earlier["text"])


class StalledCall(OpenCall):
    """A client that reads the first chunks and then nothing until it leaves."""

    async def _send(self, message: Any) -> None:
        await super()._send(message)
        if len(self.sent) > 3 and not self._left.is_set():
            await self._left.wait()


def test_leaving_a_stream_unread_ends_it_at_once_whatever_has_piled_up() -> None:
    server = FakeServer()
    server.engine.output = lambda request: [97] * 400
    body = {"text": "hi", "stream": True, "return_logprob": True, "top_logprobs_num": 100}

    async def go() -> StalledCall:
        call = StalledCall(server.app, "/generate", {**body, "sampling_params": {"n": 4}})
        while len(call.sent) < 4:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.5)  # all tokens are there now
        call.leave()
        await asyncio.wait_for(call.task, 2)
        return call

    call = asyncio.run(go())

    assert len(call.sent) <= 6, "events were still written for a client that is gone"


@pytest.mark.parametrize(
    ("fields", "is_taken"),
    [
        ({"top_logprobs_num": 100, "logprob_start_len": 0}, True),
        ({"top_logprobs_num": 100, "token_ids_logprob": [1] * 1000, "logprob_start_len": 0}, False),
        ({"token_ids_logprob": [1] * 1000, "sampling_params": {"n": 100}}, False),
    ],
)
def test_the_number_of_logprobs_of_one_body_is_bounded(
    fields: dict[str, Any], is_taken: bool
) -> None:
    server = FakeServer()
    body = {"text": ["a" * 300] * 4, "return_logprob": True, **fields}

    reply = server.call("POST", "/generate", json=body)

    assert (reply.status_code == 200) is is_taken, reply.text[:300]
    if not is_taken:
        error = reply.json()["error"]
        assert "log-probabilities" in error["message"]
        assert error["param"] == "token_ids_logprob"
        assert not server.engine.requests
