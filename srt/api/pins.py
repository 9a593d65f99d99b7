"""POST /pin_prefix, and POST or DELETE /unpin_prefix: what stays in the cache for a stated time."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from .context import ApiContext
from .disconnect import until_disconnect
from .json_response import json_response
from .openapi import takes
from .pin_job import PinBody, UnpinBody, pin_prefix, unpin_prefix
from .request_body import read_body


def pins_router(context: ApiContext) -> APIRouter:
    """Return the router of both routes; see auth for the key they need."""
    router = APIRouter()

    @router.post("/pin_prefix", openapi_extra=takes(PinBody))
    async def pin(request: Request) -> Response:
        """Compute a prefix if it is not cached, and keep it from eviction for ttl_seconds."""
        body = await read_body(request, PinBody)
        return await until_disconnect(request.receive, _pin(context, body))

    @router.post("/unpin_prefix", openapi_extra=takes(UnpinBody))
    async def unpin(request: Request) -> Response:
        """End a pin before its time; what it held stays cached, and may be evicted."""
        return await _unpin(context, request)

    @router.delete("/unpin_prefix", openapi_extra=takes(UnpinBody))
    async def unpin_by_delete(request: Request) -> Response:
        """The same as POST."""
        return await _unpin(context, request)

    return router


async def _pin(context: ApiContext, body: PinBody) -> Response:
    return json_response(await pin_prefix(context.client, body))


async def _unpin(context: ApiContext, request: Request) -> Response:
    body = await read_body(request, UnpinBody)
    return json_response(await unpin_prefix(context.client, body.pin_id))
