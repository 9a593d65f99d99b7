"""RuntimeEndpoint on the wire: kept connections, what is tried again, and how failures are told."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from runtime import ProgramState, RuntimeEndpoint, assistant, function, gen, user
from runtime.lang.errors import BackendError

REPLY = {"text": " out", "output_ids": [], "meta_info": {"finish_reason": {"type": "stop"}}}


class Wire:
    """A server whose answers a test writes by hand; it notes what it was asked."""

    def __init__(self) -> None:
        self.bodies: list[Any] = []
        self.ports: set[int] = set()
        self.answer: Callable[[BaseHTTPRequestHandler], None] = lambda handler: send(handler, REPLY)
        wire = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                wire.ports.add(self.client_address[1])
                raw = self.rfile.read(int(self.headers["Content-Length"]))
                wire.bodies.append((self.path, self.headers.get("Authorization"), json.loads(raw)))
                wire.answer(self)

            def do_GET(self) -> None:
                send(self, {"incremental_streaming_output": False})

            def log_message(self, format: str, *args: Any) -> None:
                """Nothing: tests print nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def send(handler: BaseHTTPRequestHandler, body: Any, status: int = 200) -> None:
    raw = json.dumps(body).encode()
    handler.send_response(status)
    handler.send_header("Content-Length", str(len(raw)))
    handler.end_headers()
    handler.wfile.write(raw)


def hang_up(handler: BaseHTTPRequestHandler) -> None:
    handler.close_connection = True
    handler.connection.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def wire() -> Iterator[Wire]:
    server = Wire()
    yield server
    server.close()


@function
def program(s: ProgramState, num: int = 1) -> None:
    for index in range(num):
        s += "x" + gen(f"a{index}", max_tokens=3)


def test_calls_one_after_the_other_use_one_connection_and_the_key(wire: Wire) -> None:
    with RuntimeEndpoint(wire.url + "/", api_key="secret") as backend:
        assert program.run(5, backend=backend).text() == "x out" * 5

    assert len(wire.ports) == 1
    path, key, body = wire.bodies[0]
    assert (path, key) == ("/generate", "Bearer secret")
    assert body == {
        "text": "x",
        "sampling_params": {"max_new_tokens": 3},
        "program_id": body["program_id"],
        "branch_id": "0",
    }
    assert {one["program_id"] for _, _, one in wire.bodies} == {body["program_id"]}


def test_a_request_that_was_sent_is_not_sent_again(wire: Wire) -> None:
    wire.answer = hang_up

    with (
        RuntimeEndpoint(wire.url) as backend,
        pytest.raises(BackendError, match=f"the connection to {wire.url} broke"),
    ):
        program.run(backend=backend)

    assert len(wire.bodies) == 1


def test_a_connection_that_cannot_be_made_is_tried_again_until_the_server_is_there() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    started = time.monotonic()

    with (
        RuntimeEndpoint(f"http://127.0.0.1:{port}") as backend,
        pytest.raises(BackendError, match="cannot be reached"),
    ):
        program.run(backend=backend)

    # Two pauses, 0.25 s in all: tried three times. The rest is what a busy machine may add.
    assert 0.25 <= time.monotonic() - started < 3


def test_a_refusal_keeps_its_status_field_and_words(wire: Wire) -> None:
    error = {"error": {"message": "regex is too long", "type": "x", "param": "regex"}}
    wire.answer = lambda handler: send(handler, error, 400)

    with (
        RuntimeEndpoint(wire.url) as backend,
        pytest.raises(BackendError, match="status 400: regex is too long") as caught,
    ):
        program.run(backend=backend)

    assert (caught.value.status_code, caught.value.param) == (400, "regex")


def test_an_answer_that_is_no_json_is_an_error(wire: Wire) -> None:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", "4")
        handler.end_headers()
        handler.wfile.write(b"<br>")

    wire.answer = answer

    with RuntimeEndpoint(wire.url) as backend, pytest.raises(BackendError, match="no JSON"):
        program.run(backend=backend)


def _events(*payloads: str) -> Callable[[BaseHTTPRequestHandler], None]:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Connection", "close")
        handler.end_headers()
        handler.close_connection = True
        for payload in payloads:
            handler.wfile.write(f"data: {payload}\n\n".encode())

    return answer


def test_a_page_in_the_place_of_an_answer_is_told_in_one_line(wire: Wire) -> None:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        page = b"<html>\n  <body>\n    Bad   gateway\n" + b" " * 500
        handler.send_response(502)
        handler.send_header("Content-Length", str(len(page)))
        handler.end_headers()
        handler.wfile.write(page)

    wire.answer = answer

    with RuntimeEndpoint(wire.url) as backend, pytest.raises(BackendError) as caught:
        program.run(backend=backend)

    assert str(caught.value).endswith("answered with status 502: <html> <body> Bad gateway")


def test_calls_with_tools_say_who_makes_them_too(wire: Wire) -> None:
    message = {"role": "assistant", "content": "no"}
    answer = {"choices": [{"message": message, "finish_reason": "stop"}]}
    wire.answer = lambda handler: send(handler, answer)

    def look(word: str) -> str:
        """Look a word up."""
        return word

    @function
    def asking(s: ProgramState) -> None:
        s += user("hi")
        s += assistant(gen("a", tools=[look]))

    with RuntimeEndpoint(wire.url) as backend:
        asking.run(backend=backend)

    ((path, _, body),) = wire.bodies
    assert path == "/v1/chat/completions"
    assert len(body["program_id"]) == 32
    assert body["branch_id"] == "0"


def test_a_stream_becomes_pieces(wire: Wire) -> None:
    texts = ["a", "ab", "abc"]
    wire.answer = _events(*(json.dumps({**REPLY, "text": one}) for one in texts), "[DONE]")

    with RuntimeEndpoint(wire.url) as backend:
        state = program.run(backend=backend, stream=True)
        assert list(state.text_iter("a0")) == ["a", "b", "c"]
        assert state.text() == "xabc"


@pytest.mark.parametrize(
    ("payloads", "words"),
    [
        ([], "before its end"),
        ([json.dumps(REPLY)], "before its end"),
        (['{"error": {"message": "the engine died"}}', "[DONE]"], "the engine died"),
        (["<br>"], "no JSON"),
    ],
)
def test_a_stream_that_ends_badly_is_an_error(wire: Wire, payloads: list[str], words: str) -> None:
    wire.answer = _events(*payloads)

    with RuntimeEndpoint(wire.url) as backend:
        state = program.run(backend=backend, stream=True)
        with pytest.raises(BackendError, match=words):
            state["a0"]


def test_a_server_that_says_nothing_ends_at_the_deadline(wire: Wire) -> None:
    silent = threading.Event()
    wire.answer = lambda handler: None if silent.wait(5) else None

    with RuntimeEndpoint(wire.url) as backend:
        started = time.monotonic()
        with pytest.raises(TimeoutError, match=r"within 0.2 seconds"):
            program.run(backend=backend, timeout_seconds=0.2)
        assert time.monotonic() - started < 3
    silent.set()


def test_no_more_calls_are_open_than_allowed(wire: Wire) -> None:
    open_calls, most = [0], [0]
    lock = threading.Lock()

    def answer(handler: BaseHTTPRequestHandler) -> None:
        with lock:
            open_calls[0] += 1
            most[0] = max(most[0], open_calls[0])
        time.sleep(0.02)
        with lock:
            open_calls[0] -= 1
        send(handler, REPLY)

    wire.answer = answer

    with RuntimeEndpoint(wire.url, max_connections=3) as backend:
        program.run_batch([()] * 20, backend=backend, concurrency=20)

    assert most[0] == 3
    assert len(wire.ports) <= 3
