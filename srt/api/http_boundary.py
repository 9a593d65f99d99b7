"""The outermost layer of the HTTP server: request ids and the last catch of defects."""

from __future__ import annotations

import logging
import re
import uuid

from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .errors import error_response, internal_error

_SAFE_ID = re.compile(r"[\x21-\x7e]{1,128}")

logger = logging.getLogger(__name__)


class HttpBoundary:
    """Gives each request an id, sent back as X-Request-Id, and turns defects into a plain 500.

    The id is the client's X-Request-Id if it sent a usable one; else the request id that the route
    settles on (see name_request); else a random one.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        state = scope.setdefault("state", {})
        given = _given_id(scope)
        state["request_id"] = given or uuid.uuid4().hex
        state["request_id_given"] = given is not None
        started = False

        async def send_with_id(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                MutableHeaders(scope=message)["X-Request-Id"] = state["request_id"]
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except ClientDisconnect:  # while it was still sending its body
            logger.debug("request %s: client went away", state["request_id"])
        except Exception:
            logger.exception("request %s failed: %s", state["request_id"], scope.get("path"))
            if not started:
                await error_response(internal_error())(scope, receive, send_with_id)


def name_request(request: Request, rid: str) -> None:
    """Make rid the id that X-Request-Id tells, unless the client chose one for that header."""
    state = request.scope["state"]
    if not state.get("request_id_given") and _SAFE_ID.fullmatch(rid):
        state["request_id"] = rid


def _given_id(scope: Scope) -> str | None:
    for name, value in scope["headers"]:
        if name == b"x-request-id":
            text: str = value.decode("latin-1")
            return text if _SAFE_ID.fullmatch(text) else None
    return None
