"""A peer without a server: its engine runs in a small worker script of ours, in its own venv.

The worker speaks JSON lines. It says {"ready": true, "version": ...} once, or {"error": ...}, then
answers each {"prompts", "max_tokens", "schema"} with {"wall_seconds", "answers"} or with
{"not_available": why}. See peers/openvino_worker.py.
"""

from __future__ import annotations

import json
import os
import select
import time
from collections.abc import Mapping, Sequence
from typing import Any

from .answers import Answer, Answers, CaseTimeout, NotAvailable
from .cases import Workload
from .child import Child


class WorkerPeer:
    """A worker that has loaded its model; owns the process."""

    def __init__(
        self, command: Sequence[str], env: Mapping[str, str], start_timeout_seconds: float
    ) -> None:
        self._child = Child(command, env, talks=True)
        self._buffer = b""
        try:
            self._read(start_timeout_seconds)
        except BaseException:
            self.stop()
            raise

    @property
    def pid(self) -> int:
        """The worker's process."""
        return self._child.process.pid

    def run(self, workload: Workload, timeout_seconds: float) -> Answers:
        """See answers.Peer.run."""
        question = {
            "prompts": workload.prompts,
            "chat": workload.schema is not None,
            "max_tokens": workload.max_tokens,
            "schema": workload.schema,
        }
        assert self._child.process.stdin is not None
        self._child.process.stdin.write(json.dumps(question).encode() + b"\n")
        self._child.process.stdin.flush()
        reply = self._read(timeout_seconds)
        if "not_available" in reply:
            raise NotAvailable(str(reply["not_available"]))
        answers = [Answer(**one) for one in reply["answers"]]
        return Answers(float(reply["wall_seconds"]), answers)

    def stop(self) -> None:
        """End the worker."""
        self._child.stop()

    def _read(self, timeout_seconds: float) -> dict[str, Any]:
        """Return the next line of the worker, parsed; waits without using CPU."""
        deadline = time.monotonic() + timeout_seconds
        stream = self._child.process.stdout
        assert stream is not None
        while b"\n" not in self._buffer:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([stream], [], [], left)[0]:
                raise CaseTimeout(f"over {timeout_seconds:g} s")
            piece = os.read(stream.fileno(), 1 << 16)
            if not piece:
                raise RuntimeError(f"the worker ended: {self._child.log_tail()}")
            self._buffer += piece
        line, self._buffer = self._buffer.split(b"\n", 1)
        reply: dict[str, Any] = json.loads(line)
        if "error" in reply:
            raise RuntimeError(str(reply["error"]))
        return reply
