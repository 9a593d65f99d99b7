"""Streams that run beside other requests, and the gaps between their tokens."""

from __future__ import annotations

import http.client
import json
import re
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .server import CHAT_PATH, Server

_CONTENT = re.compile(rb'"content":"[^"]')


@dataclass(frozen=True, slots=True)
class Gap:
    """The time between two pieces of text of one answer; times of perf_counter."""

    started: float
    ended: float

    @property
    def ms(self) -> float:
        """Its length."""
        return (self.ended - self.started) * 1e3


class Stream:
    """Streams the same question again and again, from its start until stop."""

    def __init__(self, server: Server, body: dict[str, Any]) -> None:
        self._server = server
        self._body = json.dumps({**body, "stream": True}).encode()
        self._answers: list[list[float]] = []  # when text came, of each answer
        self._stops = threading.Event()
        self._problem: str | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def num_pieces(self) -> int:
        """Pieces of text so far."""
        return sum(map(len, self._answers))

    def stop(self) -> list[Gap]:
        """End the stream and return its gaps; raises RuntimeError if it broke."""
        self._stops.set()
        self._thread.join(30)
        if self._problem is not None:
            raise RuntimeError(f"a neighbouring stream broke: {self._problem}")
        return [
            Gap(before, after)
            for times in self._answers
            for before, after in zip(times, times[1:], strict=False)
        ]

    def _run(self) -> None:
        try:
            while not self._stops.is_set():
                self._read_one()
        except (OSError, http.client.HTTPException, RuntimeError) as error:
            self._problem = str(error) or type(error).__name__

    def _read_one(self) -> None:
        connection = http.client.HTTPConnection(self._server.host, timeout=60)
        times: list[float] = []
        self._answers.append(times)
        try:
            connection.request("POST", CHAT_PATH, self._body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            if response.status != 200:
                raise RuntimeError(f"status {response.status}: {response.read(300)!r}")
            while not self._stops.is_set() and (data := response.read1(1 << 16)):
                when = time.perf_counter()
                if b'"error"' in data:
                    raise RuntimeError(data[:300].decode("utf-8", "replace"))
                if _CONTENT.search(data):
                    times.append(when)
        finally:
            connection.close()


def split_gaps(
    gaps: Sequence[Gap], busy: Sequence[tuple[float, float]]
) -> tuple[list[float], list[float]]:
    """Milliseconds of the gaps outside all of the busy times, and of those that meet one."""
    alone: list[float] = []
    beside: list[float] = []
    for gap in gaps:
        meets = any(gap.started < end and start < gap.ended for start, end in busy)
        (beside if meets else alone).append(gap.ms)
    return alone, beside
