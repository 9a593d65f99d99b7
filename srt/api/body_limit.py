"""Refuses request bodies above a size, announced or not."""

from __future__ import annotations

import asyncio
import contextlib

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..errors import PayloadTooLarge
from .errors import error_response

# A client that is still sending when the connection closes sees a reset instead of the 413: the
# rest of a refused body is read and dropped, within reason.
DROPPED_LIMITS = 8  # times limit_bytes
DROP_TIMEOUT_SECONDS = 10.0


class BodyLimit:
    """Answers 413 to a body of more than limit_bytes, chunked ones included.

    At most limit_bytes of a body are held.
    """

    def __init__(self, app: ASGIApp, limit_bytes: int) -> None:
        self._app = app
        self._limit_bytes = limit_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        announced = _announced_bytes(scope)
        if announced is not None and announced > self._limit_bytes:
            await self._drop_rest(receive)
            await error_response(self._error(announced))(scope, receive, send)
            return
        num_bytes = 0

        async def limited_receive() -> Message:
            nonlocal num_bytes
            message = await receive()
            if message["type"] == "http.request":
                num_bytes += len(message.get("body", b""))
                if num_bytes > self._limit_bytes:
                    if message.get("more_body", False):
                        await self._drop_rest(receive)
                    raise self._error(num_bytes)
            return message

        await self._app(scope, limited_receive, send)

    async def _drop_rest(self, receive: Receive) -> None:
        left = DROPPED_LIMITS * self._limit_bytes
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DROP_TIMEOUT_SECONDS):
                while left > 0:
                    message = await receive()
                    left -= len(message.get("body", b""))
                    if not message.get("more_body", False):
                        return

    def _error(self, num_bytes: int) -> PayloadTooLarge:
        return PayloadTooLarge(
            f"the body has {num_bytes} bytes or more; at most {self._limit_bytes} are taken "
            "(--max-request-body-bytes)"
        )


def _announced_bytes(scope: Scope) -> int | None:
    for name, value in scope["headers"]:
        if name == b"content-length":
            return int(value) if value.isdigit() else None
    return None
