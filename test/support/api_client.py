"""A client of one running server: the calls that end-to-end tests make, and waiting for a state."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import TracebackType
from typing import Any, TypeVar

import httpx

CALL_TIMEOUT_SECONDS = 150.0
IDLE_TIMEOUT_SECONDS = 30.0
POLL_SECONDS = 0.02
MAX_CONNECTIONS = 256

T = TypeVar("T")


class ApiClient:
    """Calls of one server. generate, complete and chat are greedy unless told otherwise.

    Safe to use from several threads. As a context manager it closes its connections at the end.
    """

    def __init__(self, base_url: str, api_key: str | None = None) -> None:
        headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
        limits = httpx.Limits(max_connections=MAX_CONNECTIONS)
        self.base_url = base_url
        self._http = httpx.Client(
            base_url=base_url, headers=headers, timeout=CALL_TIMEOUT_SECONDS, limits=limits
        )

    def __enter__(self) -> ApiClient:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections."""
        self._http.close()

    # Plain calls

    def get(self, path: str) -> httpx.Response:
        """Return the answer to a GET."""
        return self._http.get(path)

    def post(self, path: str, body: Any = None, *, raw: bytes | None = None) -> httpx.Response:
        """Return the answer to a POST of body as JSON, or of raw as it is."""
        if raw is not None:
            headers = {"Content-Type": "application/json"}
            return self._http.post(path, content=raw, headers=headers)
        return self._http.post(path, json=body)

    def ok(self, path: str, body: Any) -> Any:
        """Return the JSON answer to a POST that must succeed."""
        response = self.post(path, body)
        assert response.status_code == 200, (response.status_code, response.text[:500])
        return response.json()

    # Generation

    def generate(
        self, prompt: Any, max_new_tokens: int = 16, *, sampling: Any = None, **fields: Any
    ) -> Any:
        """Return the answer of /generate to a text, token ids, or a list of either."""
        return self.ok("/generate", generate_body(prompt, max_new_tokens, sampling, **fields))

    def complete(self, prompt: Any, max_tokens: int = 16, **fields: Any) -> Any:
        """Return the answer of /v1/completions."""
        body = {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, **fields}
        return self.ok("/v1/completions", body)

    def chat(self, messages: Any, max_tokens: int = 16, **fields: Any) -> Any:
        """Return the answer of /v1/chat/completions to messages, or to one user message."""
        return self.ok("/v1/chat/completions", chat_body(messages, max_tokens, **fields))

    def events(self, path: str, body: Any) -> list[Any]:
        """Return all events of a streamed answer; it must end with [DONE], which is left out."""
        with self.open_stream(path, body) as events:
            received = list(events)
        assert received and received[-1] == "[DONE]", received[-2:]
        assert "[DONE]" not in received[:-1]
        return received[:-1]

    @contextmanager
    def open_stream(self, path: str, body: Any) -> Iterator[Iterator[Any]]:
        """Open a streamed answer; leaving the block early is a client that goes away."""
        with self._http.stream("POST", path, json={**body, "stream": True}) as response:
            if response.status_code != 200:
                response.read()
                raise AssertionError((response.status_code, response.text[:500]))
            assert response.headers["content-type"].startswith("text/event-stream")
            yield _events(response)

    @contextmanager
    def unanswered(self, path: str, body: Any) -> Iterator[None]:
        """Send a request, and hang up at the end of the block without having read anything."""
        url = self._http.base_url
        connection = http.client.HTTPConnection(url.host, url.port, timeout=CALL_TIMEOUT_SECONDS)
        try:
            headers = {name: self._http.headers[name] for name in self._http.headers}
            headers["Content-Type"] = "application/json"
            connection.request("POST", path, body=json.dumps(body), headers=headers)
            yield
        finally:
            connection.close()

    def tokenize(self, text: str) -> list[int]:
        """Return the token ids of text, without any special tokens that a prompt would get."""
        body = {"prompt": text, "add_special_tokens": False}
        tokens: list[int] = self.ok("/tokenize", body)["tokens"]
        return tokens

    # The server's state

    def kv(self) -> dict[str, int]:
        """Return /kv_stats."""
        stats: dict[str, int] = self._asked("/kv_stats")
        return stats

    def scheduler_state(self) -> dict[str, Any]:
        """Return the scheduler's part of /server_info."""
        state: dict[str, Any] = self._asked("/server_info")["internal_states"][0]
        return state

    def _asked(self, path: str) -> Any:
        """Return the JSON answer to a GET, asking again while the scheduler is too busy for one."""
        deadline = time.monotonic() + IDLE_TIMEOUT_SECONDS
        while (response := self.get(path)).status_code == 503:
            assert time.monotonic() < deadline, response.text
        assert response.status_code == 200, (response.status_code, response.text[:500])
        return response.json()

    def num_open(self) -> int:
        """Return how many requests the scheduler computes or has waiting."""
        state = self.scheduler_state()
        return int(state["num_running_reqs"]) + int(state["num_queue_reqs"])

    def counter(self, name: str) -> int:
        """Return one of the scheduler's totals."""
        return int(self.scheduler_state()["counters"][name])

    def flush(self) -> None:
        """Empty the prefix cache."""
        response = self.post("/flush_cache")
        assert response.status_code == 200, response.text

    def wait_until_idle(self) -> None:
        """Return once no request is open; then the pool's accounting must be exact."""
        wait_until(lambda: self.num_open() == 0, "no request is open")
        kv = self.kv()
        assert kv["protected"] == kv["held"] == 0, kv
        assert kv["available"] + kv["evictable"] == kv["total"], kv


def generate_body(
    prompt: Any, max_new_tokens: int = 16, sampling: Any = None, **fields: Any
) -> dict[str, Any]:
    """Return a body of /generate for a text, token ids, or a list of either."""
    first = prompt[0] if isinstance(prompt, list) else prompt
    name = "text" if isinstance(first, str) else "input_ids"
    params = {"max_new_tokens": max_new_tokens, "temperature": 0, **(sampling or {})}
    return {name: prompt, "sampling_params": params, **fields}


def chat_body(messages: Any, max_tokens: int = 16, **fields: Any) -> dict[str, Any]:
    """Return a body of /v1/chat/completions for messages, or for one user message."""
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    return {"messages": messages, "max_tokens": max_tokens, "temperature": 0, **fields}


def side_by_side(calls: Sequence[Callable[[], T]]) -> list[T]:
    """Make all calls at once, a thread each; return their results in order."""
    with ThreadPoolExecutor(len(calls)) as threads:
        return [future.result() for future in [threads.submit(call) for call in calls]]


def wait_until(
    condition: Callable[[], bool], what: str, timeout_seconds: float = IDLE_TIMEOUT_SECONDS
) -> float:
    """Ask until condition holds; return the seconds that took, fail after timeout_seconds."""
    start = time.monotonic()
    while not condition():
        waited = time.monotonic() - start
        assert waited < timeout_seconds, f"not within {timeout_seconds} s: {what}"
        time.sleep(POLL_SECONDS)
    return time.monotonic() - start


def _events(response: httpx.Response) -> Iterator[Any]:
    for line in response.iter_lines():
        if line:
            assert line.startswith("data: "), line
            data = line.removeprefix("data: ")
            yield data if data == "[DONE]" else json.loads(data)
