"""A peer behind an OpenAI-compatible HTTP server."""

from __future__ import annotations

import time
import urllib.error
import urllib.request
from typing import Any

from .answers import Answers
from .cases import Workload
from .child import Child
from .client import complete


class HttpPeer:
    """A child process that serves on base_url; owns the child."""

    def __init__(
        self, child: Child, base_url: str, model: str, extra_fields: dict[str, Any] | None = None
    ) -> None:
        self._child = child
        self._base_url = base_url
        self._model = model
        self._extra_fields = extra_fields or {}

    @property
    def pid(self) -> int:
        """The server's first process."""
        return self._child.process.pid

    @property
    def base_url(self) -> str:
        """Where it listens."""
        return self._base_url

    @property
    def model(self) -> str:
        """The name that it serves the model under."""
        return self._model

    def run(self, workload: Workload, timeout_seconds: float) -> Answers:
        """See answers.Peer.run."""
        return complete(self._base_url, self._model, workload, timeout_seconds, self._extra_fields)

    def stop(self) -> None:
        """End the server."""
        self._child.stop()


def wait_until_healthy(child: Child, base_url: str, timeout_seconds: float) -> None:
    """Return once GET /health answers 200; stops the child and raises RuntimeError if never."""
    deadline = time.monotonic() + timeout_seconds
    while time.monotonic() < deadline and child.process.poll() is None:
        try:
            with urllib.request.urlopen(base_url + "/health", timeout=5) as response:
                if response.status == 200:
                    return
        except (urllib.error.URLError, TimeoutError, ConnectionError):
            pass
        time.sleep(0.05)
    tail = child.log_tail()
    child.stop()
    raise RuntimeError(f"no healthy server within {timeout_seconds:g} s: {tail}")
