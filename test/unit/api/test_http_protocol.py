"""The HTTP connection itself: what is sent before a body is bounded in size and time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from runtime.srt.api import http_protocol
from runtime.srt.api.http_protocol import MAX_HEAD_BYTES, BoundedHttpProtocol

PATIENCE_SECONDS = 5.0
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass
class Answer:
    """One HTTP answer; body is parsed JSON."""

    status: int
    headers: dict[str, str]
    body: Any


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer with path, number of headers and number of body bytes."""
    num_bytes, more = 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        num_bytes += len(message["body"])
        more = message["more_body"]
    text = json.dumps([scope["path"], len(scope["headers"]), num_bytes]).encode()
    length = (b"content-length", str(len(text)).encode())
    await send({"type": "http.response.start", "status": 200, "headers": [length]})
    await send({"type": "http.response.body", "body": text, "more_body": False})


@asynccontextmanager
async def serving() -> AsyncIterator[Callable[[], Awaitable[Connection]]]:
    config = uvicorn.Config(echo, log_config=None, lifespan="off", ws="none", server_header=False)
    state = ServerState()
    server = await asyncio.get_running_loop().create_server(
        lambda: BoundedHttpProtocol(config, state, {}), "127.0.0.1", 0
    )
    port = server.sockets[0].getsockname()[1]
    opened: list[asyncio.StreamWriter] = []

    async def connect() -> Connection:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        opened.append(writer)
        return reader, writer

    async with server:
        yield connect
        for writer in opened:
            writer.close()
        for connection in list(state.connections):
            connection.transport.abort()


async def read_answer(reader: asyncio.StreamReader) -> Answer | None:
    """Return the next answer, None if the connection is closed without one."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        head = await reader.readuntil(b"\r\n\r\n") if not reader.at_eof() else b""
        if not head:
            return None
        first, *rest = head.decode().strip().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in rest)
        body = await reader.readexactly(int(headers["content-length"]))
    return Answer(int(first.split()[1]), headers, json.loads(body))


async def closed_by_server(reader: asyncio.StreamReader) -> bool:
    async with asyncio.timeout(PATIENCE_SECONDS):
        return await reader.read() == b""


def exchange(*pieces: bytes, num_answers: int = 1) -> tuple[list[Answer], bool]:
    """Send pieces over one connection; return the answers, and whether the server closed it."""

    async def go() -> tuple[list[Answer], bool]:
        async with serving() as connect:
            reader, writer = await connect()
            for piece in pieces:
                writer.write(piece)
                await asyncio.sleep(0.01)  # so that they arrive one by one
            answers = [await read_answer(reader) for _ in range(num_answers)]
            found = [one for one in answers if one is not None]
            closes = found[-1].headers.get("connection") == "close"
            return found, closes and await closed_by_server(reader)

    return asyncio.run(go())


def head_of(num_bytes: int, *, path: str = "/x", in_path: bool = False) -> bytes:
    """Return a whole request head of exactly num_bytes."""
    start, end = f"GET {path}".encode(), b" HTTP/1.1\r\nhost: a\r\n"
    if in_path:
        return start + b"a" * (num_bytes - len(start + end) - 2) + end + b"\r\n"
    frame = start + end + b"x-long: \r\n\r\n"
    return start + end + b"x-long: " + b"a" * (num_bytes - len(frame)) + b"\r\n\r\n"


def check_refusal(answer: Answer, status: int, code: str) -> None:
    assert answer.status == status
    assert answer.headers["content-type"] == "application/json"
    assert set(answer.body["error"]) == {"message", "type", "param", "code"}
    assert answer.body["error"]["type"] == "invalid_request_error"
    assert answer.body["error"]["code"] == code


@pytest.mark.parametrize("in_path", [False, True])
@pytest.mark.parametrize("num_bytes", [1000, MAX_HEAD_BYTES - 1, MAX_HEAD_BYTES])
def test_heads_up_to_the_limit_are_served(num_bytes: int, in_path: bool) -> None:
    answers, closed = exchange(head_of(num_bytes, in_path=in_path))

    assert answers[0].status == 200 and not closed


ENDLESS = {
    "one byte too many": [head_of(MAX_HEAD_BYTES + 1)],
    "a long path": [head_of(MAX_HEAD_BYTES + 1, in_path=True)],
    "a line without end": [b"GET / HTTP/1.1\r\na: ", b"b" * 1_000_000, b"b" * 1_000_000],
    "a name without end": [b"GET / HTTP/1.1\r\n", b"b" * 1_000_000],
    "a path without end": [b"GET /", b"b" * 1_000_000],
    "many headers": [b"GET / HTTP/1.1\r\n", b"a: b\r\n" * 20_000],
    "many small pieces": [b"GET / HTTP/1.1\r\n", *([b"a: " + b"b" * 20_000 + b"\r\n"] * 6)],
    "only line ends": [b"\r\n" * 100_000],
}


@pytest.mark.parametrize("name", ENDLESS)
def test_a_head_above_the_limit_is_a_431(name: str) -> None:
    (answer,), closed = exchange(*ENDLESS[name])

    check_refusal(answer, 431, "headers_too_large")
    assert str(MAX_HEAD_BYTES) in answer.body["error"]["message"]
    assert closed


def test_each_head_of_a_connection_has_the_whole_limit_and_no_more() -> None:
    most = head_of(MAX_HEAD_BYTES)

    answers, closed = exchange(most, most, most, head_of(MAX_HEAD_BYTES * 3), num_answers=4)

    assert [one.status for one in answers] == [200, 200, 200, 431]
    assert closed


def test_bodies_do_not_count() -> None:
    body = b"x" * 1_000_000
    head = b"POST /x HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n" % len(body)
    chunks = (b"%x\r\n%s\r\n" % (100_000, body[:100_000])) * 10
    chunked = b"POST /x HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n"
    tiny = b"1\r\nx\r\n" * 50_000 + b"0\r\n\r\n"

    answers, _ = exchange(
        head + body, chunked, chunks, b"0\r\n\r\n", chunked + tiny, head_of(1000), num_answers=4
    )

    assert [one.body[2] for one in answers] == [1_000_000, 1_000_000, 50_000, 0]


def test_trailers_of_a_chunked_body_are_bounded() -> None:
    start = b"POST /x HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n"

    for trailers in (b"a: " + b"b" * 1_000_000, b"a: b\r\n" * 100_000):
        (answer,), closed = exchange(start, trailers)

        check_refusal(answer, 431, "headers_too_large")
        assert closed


def test_many_pipelined_requests_in_one_piece_are_served() -> None:
    num_requests = 3000  # in 150 KB

    answers, _ = exchange(head_of(50) * num_requests, num_answers=num_requests)

    assert {one.status for one in answers} == {200}


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"\x16\x03\x01\x02\x00\x01\x00",  # a TLS client
        b"nonsense\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET / HTTP/1.1\r\nno colon\r\n\r\n",
        b"GET / HTTP/1.1\r\na: b\x00c\r\n\r\n",
        b"POST / HTTP/1.1\r\ncontent-length: x\r\n\r\n",
        b"POST / HTTP/1.1\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
        b"POST / HTTP/1.1\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n",
        b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\nnot hexadecimal\r\n",
        b"GET /\xff\xfe HTTP/1.1\r\n\r\n",
        b"GET ? HTTP/1.1\r\n\r\n",
    ],
)
def test_what_is_no_http_is_a_400_in_the_form_of_all_errors(request_bytes: bytes) -> None:
    (answer,), closed = exchange(request_bytes)

    check_refusal(answer, 400, "invalid_http")
    assert closed


def test_a_bad_second_request_does_not_answer_for_the_first() -> None:
    first = b"POST /x HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\n\r\nx"

    answers, _ = exchange(first, b"nonsense\r\n\r\n", num_answers=2)

    assert [one.status for one in answers] == [200, 400]


@pytest.fixture
def short_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_protocol, "HEAD_TIMEOUT_SECONDS", 0.2)


@pytest.mark.usefixtures("short_time")
def test_a_head_that_does_not_come_in_time_is_a_408() -> None:
    whole = head_of(100)

    (answer,), closed = exchange(b"GET / HTTP/1.1\r\na: ")
    later, later_closed = exchange(whole, whole[:50], num_answers=2)

    check_refusal(answer, 408, "request_timeout")
    assert closed and later_closed
    assert [one.status for one in later] == [200, 408]


@pytest.mark.usefixtures("short_time")
def test_a_client_that_drips_its_head_is_cut_off_all_the_same() -> None:
    async def go() -> Answer | None:
        async with serving() as connect:
            reader, writer = await connect()
            writer.write(b"GET / HTTP/1.1\r\na: ")
            answer = asyncio.ensure_future(read_answer(reader))
            while not answer.done():
                writer.write(b"b")
                await asyncio.sleep(0.02)
            return await answer

    answer = asyncio.run(go())

    assert answer is not None
    check_refusal(answer, 408, "request_timeout")


@pytest.mark.usefixtures("short_time")
def test_a_connection_without_any_request_is_closed() -> None:
    async def go() -> bool:
        async with serving() as connect:
            reader, _ = await connect()
            return await closed_by_server(reader)

    assert asyncio.run(go())


@pytest.mark.usefixtures("short_time")
def test_a_slow_body_is_no_slow_head() -> None:
    async def go() -> Answer | None:
        async with serving() as connect:
            reader, writer = await connect()
            writer.write(b"POST /x HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\n")
            for _ in range(2):
                await asyncio.sleep(0.25)
                writer.write(b"x")
            return await read_answer(reader)

    answer = asyncio.run(go())

    assert answer is not None and answer.status == 200
