"""OpenAIBackend on the wire: what it says beside OpenAI's own fields, and only where asked."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from runtime import OpenAIBackend, ProgramState, assistant, function, gen, user

ANSWER = {
    "id": "c",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "choices": [
        {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "{}"}}
    ],
    "usage": {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4},
}


class Service:
    """Answers every call with ANSWER, and keeps the bodies."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        service = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                raw = self.rfile.read(int(self.headers["Content-Length"]))
                service.bodies.append(json.loads(raw))
                answer = json.dumps(ANSWER).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, format: str, *args: Any) -> None:
                """Nothing: tests print nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def service() -> Iterator[Service]:
    running = Service()
    yield running
    running.close()


@function
def two(s: ProgramState, **fields: Any) -> None:
    s += user("hi")
    branches = s.fork(2)
    branches += assistant(gen("a", max_tokens=3, **fields))
    branches.join()


def _run(service: Service, *, fields: dict[str, Any] | None = None, **options: Any) -> None:
    backend = OpenAIBackend("m", base_url=service.url, api_key="none", **options)
    try:
        two.run(backend=backend, **(fields or {}))
    finally:
        backend.close()


def test_a_call_says_who_makes_it_where_the_service_reads_that(service: Service) -> None:
    _run(service, program_ids=True)

    assert len({one["program_id"] for one in service.bodies}) == 1
    assert {one["branch_id"] for one in service.bodies} == {"1", "2"}


def test_a_call_has_openais_own_fields_only_by_default(service: Service) -> None:
    _run(service)

    assert len(service.bodies) == 2
    for body in service.bodies:
        assert set(body) == {"messages", "model", "max_tokens"}


def test_whitespace_of_json_is_one_of_the_extra_fields(service: Service) -> None:
    fields = {"json_schema": {"type": "object"}, "json_whitespace": "compact"}

    _run(service, extra_fields=True, fields=fields)

    assert [one["json_whitespace"] for one in service.bodies] == ["compact"] * 2
    with pytest.raises(Exception, match="has no json_whitespace, which 'a' sets"):
        _run(service, fields=fields)
