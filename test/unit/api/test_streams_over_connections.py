"""Streams over a real connection, where tokens take the short way: the bytes are the same."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import httpx
import pytest
import uvicorn
from support.fake_engine import FakeServer
from uvicorn.server import ServerState

from runtime.srt.api.chunk_writer import chunk_writer_of
from runtime.srt.api.http_protocol import BoundedHttpProtocol

_VARYING = re.compile(rb'"(id|created)":("[^"]*"|\d+)')
_CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}


def over_connection(path: str, body: dict[str, Any]) -> bytes:
    async def go() -> bytes:
        server = FakeServer()
        config = uvicorn.Config(server.app, log_config=None, lifespan="off", ws="none")
        state = ServerState()
        listener = await asyncio.get_running_loop().create_server(
            lambda: BoundedHttpProtocol(config, state, {}), "127.0.0.1", 0
        )
        port = listener.sockets[0].getsockname()[1]
        async with listener, httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
            reply = await client.post(path, json=body)
        assert reply.status_code == 200, reply.text
        return reply.content

    return asyncio.run(go())


def without_connection(path: str, body: dict[str, Any]) -> bytes:
    reply = FakeServer().post(path, body)
    assert reply.status_code == 200, reply.text
    return reply.content


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "hi"}),
        ("/v1/completions", {"prompt": "hi", "echo": True}),
        ("/v1/completions", {"prompt": "hi", "stream_options": {"include_usage": True}}),
        ("/v1/completions", {"prompt": ["hi", "you"], "n": 2}),
        ("/v1/completions", {"prompt": "hi", "logprobs": 2}),
        ("/v1/completions", {"prompt": "hi", "stop": "ef"}),
        ("/v1/chat/completions", _CHAT),
        ("/v1/chat/completions", {**_CHAT, "logprobs": True, "top_logprobs": 2}),
        ("/v1/chat/completions", {**_CHAT, "n": 2}),
        (
            "/v1/chat/completions",
            {**_CHAT, "stream_options": {"include_usage": True, "continuous_usage_stats": True}},
        ),
    ],
)
def test_a_connection_carries_the_same_events(path: str, body: dict[str, Any]) -> None:
    body = {"max_tokens": 12, "stream": True, **body}

    carried = _events(over_connection(path, body))

    assert carried == _events(without_connection(path, body))
    assert carried[-1] == "[DONE]"


def test_tokens_after_the_first_go_through_the_writer(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[bytes] = []

    class Recorder:
        def __init__(self, writer: Any) -> None:
            self._writer = writer

        @property
        def is_ready(self) -> bool:
            return bool(self._writer.is_ready)

        def write(self, chunk: bytes) -> None:
            written.append(chunk)
            self._writer.write(chunk)

    monkeypatch.setattr(
        "runtime.srt.api.completions.chunk_writer_of",
        lambda scope: Recorder(chunk_writer_of(scope)),
    )
    body = {"prompt": "hi", "max_tokens": 12, "stream": True}

    carried = _events(over_connection("/v1/completions", body))

    texts = [event["choices"][0]["text"] for event in carried[:-1]]
    assert "".join(texts) == "abcdefghijkl"
    assert 1 <= len(written) <= 10  # neither the first nor the last


def _events(content: bytes) -> list[Any]:
    """The events' payloads, in any order where several choices run side by side."""
    lines = _VARYING.sub(b'"\\1":null', content).decode().split("\n\n")
    payloads = [line.removeprefix("data: ") for line in lines if line]
    parsed = [json.loads(one) if one.startswith("{") else one for one in payloads]
    return sorted(parsed, key=lambda one: one["choices"][0]["index"] if _has_choice(one) else 9)


def _has_choice(payload: Any) -> bool:
    return isinstance(payload, dict) and bool(payload["choices"])
