"""A client that goes away takes its requests with it, at once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from support.fake_engine import FakeGrammarWorker, FakeServer
from support.http_calls import OpenCall

from runtime.srt.messages import FinishReason

BODIES: list[tuple[str, dict[str, Any], int]] = [
    ("/generate", {"text": "hi"}, 1),
    ("/generate", {"text": ["a", "b", "c"]}, 3),
    ("/v1/completions", {"prompt": "hi", "n": 2}, 2),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}, 1),
]

PATIENCE_SECONDS = 10  # milliseconds are needed, on a busy machine more


async def until(condition: Any) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not condition():
            await asyncio.sleep(0.001)


@pytest.mark.parametrize(("path", "body", "num_requests"), BODIES)
@pytest.mark.parametrize("stream", [False, True])
def test_leaving_before_the_first_token_aborts(
    path: str, body: dict[str, Any], num_requests: int, stream: bool
) -> None:
    server = FakeServer()
    server.engine.hold = True

    async def go() -> list[Any]:
        call = OpenCall(server.app, path, {**body, "stream": stream})
        await until(lambda: len(server.engine.requests) == num_requests)
        call.leave()
        await asyncio.wait_for(call.task, PATIENCE_SECONDS)
        return call.sent

    sent = asyncio.run(go())

    assert sorted(map(str, server.engine.aborted)) == sorted(
        one.rid for one in server.engine.requests
    )
    assert not any(message.get("status") == 200 for message in sent)


@pytest.mark.parametrize(("path", "body", "num_requests"), BODIES)
def test_leaving_in_mid_stream_aborts(path: str, body: dict[str, Any], num_requests: int) -> None:
    server = FakeServer()
    server.engine.output = lambda request: [97] * 100_000

    async def go() -> None:
        call = OpenCall(server.app, path, {**body, "stream": True})
        await until(lambda: len(call.sent) > 5)
        call.leave()
        await asyncio.wait_for(call.task, PATIENCE_SECONDS)

    asyncio.run(go())

    assert len(server.engine.requests) == num_requests
    assert len(server.engine.aborted) == num_requests
    assert server.client.num_open_requests == 0


def test_a_finished_stream_aborts_nothing() -> None:
    server = FakeServer()

    async def go() -> None:
        call = OpenCall(server.app, "/generate", {"text": "hi", "stream": True})
        await asyncio.wait_for(call.task, PATIENCE_SECONDS)
        assert call.sent[-1]["more_body"] is False

    asyncio.run(go())

    assert server.engine.aborted == []


def test_one_failure_in_a_batch_aborts_the_rest() -> None:
    server = FakeServer()
    server.engine.output = lambda request: [] if request.rid == "b_1" else [97] * 100_000

    def finish(request: Any) -> Any:
        return FinishReason(type="abort", message="no room", status_code=500)

    server.engine.finish = finish

    reply = server.post("/generate", {"text": ["x", "y", "z"], "rid": "b"})

    assert reply.status_code == 500
    assert sorted(map(str, server.engine.aborted)) == ["b_0", "b_2"]


def test_abort_request_ends_a_whole_batch_with_an_ordinary_answer() -> None:
    server = FakeServer()
    server.engine.hold = True

    async def go() -> Any:
        async with server.http() as http:
            body = {"text": ["x", "y"], "rid": "b"}
            waiting = asyncio.ensure_future(http.post("/generate", json=body))
            await until(lambda: len(server.engine.requests) == 2)
            aborted = await http.post("/abort_request", json={"rid": "b"})
            assert aborted.json() == {"success": True, "found": True}
            return await waiting

    reply = asyncio.run(go())

    assert reply.status_code == 200
    reasons = [one["meta_info"]["finish_reason"]["type"] for one in reply.json()]
    assert reasons == ["abort", "abort"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/generate", {"text": ["x", "y"], "sampling_params": {"json_schema": "{}"}}),
        ("/generate", {"text": "x", "sampling_params": {"json_schema": "{}", "n": 2}}),
        ("/v1/completions", {"prompt": ["x", "y"], "json_schema": "{}"}),
        ("/v1/completions", {"prompt": "x", "json_schema": "{}"}),
    ],
)
def test_abort_request_reaches_a_body_whose_grammar_is_being_checked(
    path: str, body: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeGrammarWorker, "hold", True)
    server = FakeServer()

    async def go() -> Any:
        async with server.http() as http:
            waiting = asyncio.ensure_future(http.post(path, json={**body, "rid": "b"}))
            await until(lambda: any(server.client.is_open(rid) for rid in ("b", "b-0", "b_0")))
            again = await http.post(path, json={**body, "rid": "b"})
            assert again.status_code == 400 and "'b' is still open" in again.text
            aborted = await http.post("/abort_request", json={"rid": "b"})
            assert aborted.json() == {"success": True, "found": True}
            return await waiting

    reply = asyncio.run(go())

    assert reply.status_code == 400
    assert "aborted while its grammar was being checked" in reply.text
    assert server.engine.requests == []


def test_ids_are_matched_exactly_and_an_open_one_is_not_taken_twice() -> None:
    server = FakeServer()
    server.engine.hold = True

    async def go() -> tuple[Any, Any, Any]:
        async with server.http() as http:
            waiting = asyncio.ensure_future(
                http.post("/generate", json={"text": "x", "rid": "request-1"})
            )
            await until(lambda: len(server.engine.requests) == 1)
            other = await http.post("/abort_request", json={"rid": "request"})
            again = await http.post("/generate", json={"text": "x", "rid": "request-1"})
            await http.post("/abort_request", json={"abort_all": True})
            return other, again, await waiting

    other, again, first = asyncio.run(go())

    assert other.json()["found"] is False
    assert again.status_code == 400 and again.json()["error"]["param"] == "rid"
    assert first.status_code == 200


def test_leaving_while_sending_the_body_is_no_server_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = FakeServer()
    arrivals = [
        {"type": "http.request", "body": b'{"text": "h', "more_body": True},
        {"type": "http.disconnect"},
    ]
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/generate",
        "raw_path": b"/generate",
        "query_string": b"",
        "headers": [],
        "server": ("server", 80),
        "client": ("client", 1),
        "scheme": "http",
        "http_version": "1.1",
        "root_path": "",
    }

    async def receive() -> dict[str, Any]:
        return arrivals.pop(0)

    async def send(message: Any) -> None:
        pass

    asyncio.run(server.app(scope, receive, send))

    assert [one for one in caplog.records if one.levelname in ("WARNING", "ERROR")] == []
    assert server.engine.requests == []
