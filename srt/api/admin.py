"""POST /flush_cache and POST /abort_request: routes that touch other people's requests."""

from __future__ import annotations

import math

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from ..errors import BadRequest
from .context import ApiContext
from .json_response import json_response
from .openapi import takes
from .request_body import Body, read_body

# Long enough for what was just answered to leave the scheduler; clients wait 30 s or more.
DEFAULT_FLUSH_TIMEOUT_SECONDS = 10.0
MAX_FLUSH_TIMEOUT_SECONDS = 600.0


class AbortBody(Body):
    """Either one request's id, matched exactly, or all of them."""

    rid: str | None = None
    abort_all: bool | None = None
    abort_message: str | None = None


def admin_router(context: ApiContext) -> APIRouter:
    """Return the router of both routes; see auth for the key they need."""
    router = APIRouter()

    @router.post("/flush_cache")
    async def flush_cache(timeout: float = DEFAULT_FLUSH_TIMEOUT_SECONDS) -> Response:
        """Empty the prefix cache as soon as no request runs; timeout in seconds (default 10)."""
        return await _flush(context, timeout)

    @router.get("/flush_cache")
    async def flush_cache_by_get(timeout: float = DEFAULT_FLUSH_TIMEOUT_SECONDS) -> Response:
        """The same as POST."""
        return await _flush(context, timeout)

    @router.post("/abort_request", openapi_extra=takes(AbortBody))
    async def abort_request(request: Request) -> Response:
        """Abort the request, or the batch, with exactly this rid; or all with abort_all."""
        body = await read_body(request, AbortBody)
        if body.abort_all:
            found = await context.client.abort(None)
        elif not body.rid:
            raise BadRequest("rid is empty; name a request, or set abort_all", param="rid")
        else:
            found = False
            for part in context.open_bodies.parts(body.rid):
                found |= await context.client.abort(part)
        # Not an error: the request may just have finished.
        return json_response({"success": True, "found": found})

    return router


async def _flush(context: ApiContext, timeout_seconds: float) -> Response:
    if not (math.isfinite(timeout_seconds) and 0 <= timeout_seconds <= MAX_FLUSH_TIMEOUT_SECONDS):
        raise BadRequest(
            f"timeout is {timeout_seconds}; it must be from 0 to {MAX_FLUSH_TIMEOUT_SECONDS:g} s",
            param="timeout",
        )
    done = await context.client.flush_cache(timeout_seconds)
    if not done.success:
        raise BadRequest(f"the cache was not flushed: {done.message}", code="cache_in_use")
    return json_response({"success": True, "message": done.message})
