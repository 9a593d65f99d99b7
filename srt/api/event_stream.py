"""Server-sent events as an ASGI response.

The first event exists before any header is sent, so that an early error keeps its HTTP status; a
later one becomes an event. Every stream ends with [DONE]. A client that goes away closes the
source.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import orjson
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ..errors import ServingError
from .disconnect import ClientGone, until_disconnect
from .errors import error_body, internal_error

DONE = b"data: [DONE]\n\n"
_TURN_BYTES = 2048  # sent by one stream until the others get their turn: some eight tokens

logger = logging.getLogger(__name__)


def event(payload: dict[str, Any]) -> bytes:
    """Return payload as one server-sent event."""
    return b"data: " + orjson.dumps(payload) + b"\n\n"


async def open_event_stream(events: AsyncGenerator[bytes, None]) -> Response:
    """Wait for the first of events and return the response that will send them all.

    Raises what events raises before its first item. events is closed by the response, or here if
    there is none.
    """
    try:
        first = await anext(events)
    except StopAsyncIteration:
        first = b""
    except BaseException:
        await events.aclose()
        raise
    return _EventStream(first, events)


class _EventStream(Response):
    media_type = "text/event-stream"

    def __init__(self, first: bytes, rest: AsyncGenerator[bytes, None]) -> None:
        self.status_code = 200
        self.background = None
        self.body = b""
        self.init_headers({"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._first = first
        self._rest = rest

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await until_disconnect(receive, self._send_all(scope, send))
        except ClientGone:
            logger.debug("request %s: client went away", _request_id(scope))
        finally:
            # A no-op unless the work was cancelled before it began.
            await self._rest.aclose()

    async def _send_all(self, scope: Scope, send: Send) -> None:
        await send(
            {
                "type": "http.response.start",
                "status": self.status_code,
                "headers": self.raw_headers,
            }
        )
        async with aclosing(self._rest):
            last = await self._send_events(scope, send)
        await send({"type": "http.response.body", "body": last, "more_body": False})

    async def _send_events(self, scope: Scope, send: Send) -> bytes:
        """Send all events; return what ends the stream."""
        try:
            if self._first:
                await _send_chunk(send, self._first)
            num_bytes = 0
            async for chunk in self._rest:
                await _send_chunk(send, chunk)
                num_bytes += len(chunk)
                if num_bytes >= _TURN_BYTES:
                    # Neither a ready chunk nor a send to a closed connection waits: without this a
                    # backlog would keep all others out, and the disconnect unseen.
                    num_bytes = 0
                    await asyncio.sleep(0)
        except ServingError as error:
            return event(error_body(error)) + DONE
        except Exception:
            logger.exception("request %s failed while streaming", _request_id(scope))
            return event(error_body(internal_error())) + DONE
        return DONE


async def _send_chunk(send: Send, chunk: bytes) -> None:
    await send({"type": "http.response.body", "body": chunk, "more_body": True})


def _request_id(scope: Scope) -> Any:
    return scope.get("state", {}).get("request_id")
