"""ASGI calls with a client that can go away, and events read from a streamed body."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import orjson
from starlette.types import ASGIApp, Message


def events(text: str) -> list[Any]:
    """Return the events of a streamed body; [DONE] stays a string."""
    found: list[Any] = []
    for block in text.split("\n\n"):
        if block:
            assert block.startswith("data: "), block
            data = block.removeprefix("data: ")
            found.append(data if data == "[DONE]" else json.loads(data))
    return found


class OpenCall:
    """One POST whose client stays connected until it leaves."""

    def __init__(self, app: ASGIApp, path: str, body: Any) -> None:
        self.sent: list[Message] = []
        self._body = orjson.dumps(body)
        self._left = asyncio.Event()
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": [(b"content-type", b"application/json")],
            "client": ("127.0.0.1", 1),
            "server": ("server", 80),
        }
        self._has_read = False
        self.task: asyncio.Future[None] = asyncio.ensure_future(
            app(scope, self._receive, self._send)
        )

    def leave(self) -> None:
        """Close the connection."""
        self._left.set()

    async def _receive(self) -> Message:
        if not self._has_read:
            self._has_read = True
            return {"type": "http.request", "body": self._body, "more_body": False}
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        self.sent.append(message)
