"""Our own server as a child process, and plain requests to it."""

from __future__ import annotations

import http.client
import json
import re
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from serving.child import Child

MODEL = "smollm2-135m-instruct"
CHAT_PATH = "/v1/chat/completions"
_READY = re.compile(r"ready: (http://(\S+))")
_JUMPED = re.compile(r"^\S*jump_forward_tokens\S* ([0-9.e+]+)$", re.MULTILINE)
_START_SECONDS = 300.0  # the first start may compile the kernels


@dataclass(frozen=True, slots=True)
class Server:
    """Where a running server listens."""

    url: str
    host: str  # with the port


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole answer. started and ended are times of perf_counter."""

    status: int
    body: bytes
    started: float
    ended: float

    @property
    def text(self) -> str:
        """The chat answer's text, or the error's message."""
        found = json.loads(self.body)
        if self.status != 200:
            return str(found.get("error", {}).get("message", ""))
        return str(found["choices"][0]["message"]["content"])


@contextmanager
def running_server(threads: int, flags: Sequence[str] = ()) -> Iterator[Server]:
    """A server of its own on a free port, ended with the block."""
    command = [sys.executable, "-P", "-m", "runtime.launch_server", "--model-path", MODEL]
    command += ["--host", "127.0.0.1", "--port", "0", "--threads", str(threads)]
    child = Child([*command, "--max-total-tokens", "16384", *flags])
    try:
        ready = child.wait_for_line(_READY, _START_SECONDS)
        yield Server(ready[1], ready[2])
    finally:
        child.stop()


def chat_body(question: str, max_tokens: int) -> dict[str, Any]:
    """The fields of a greedy chat request."""
    return {
        "model": MODEL,
        "messages": [{"role": "user", "content": question}],
        "max_tokens": max_tokens,
        "temperature": 0,
    }


def post(server: Server, body: bytes, timeout_seconds: float) -> Reply:
    """Send one request and wait for its answer; raises TimeoutError."""
    connection = http.client.HTTPConnection(server.host, timeout=timeout_seconds)
    try:
        started = time.perf_counter()
        connection.request("POST", CHAT_PATH, body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        data = response.read()
        return Reply(response.status, data, started, time.perf_counter())
    finally:
        connection.close()


def count_jumped(server: Server) -> int:
    """Tokens that the server computed by jump since its start."""
    with urllib.request.urlopen(server.url + "/metrics", timeout=30) as response:
        text = response.read().decode()
    found = _JUMPED.search(text)
    if found is None:
        raise RuntimeError("the server's metrics do not count jump_forward_tokens")
    return int(float(found[1]))
