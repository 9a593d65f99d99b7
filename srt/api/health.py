"""Probes: is the server up, and can it really generate?"""

from __future__ import annotations

import asyncio

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from ..errors import Overloaded
from ..processes.generation_spec import GenerationSpec
from ..sampling_params import SamplingParams
from .context import ApiContext
from .disconnect import until_disconnect
from .errors import error_response
from .generation import collect, prepare_all
from .json_response import json_response

GENERATE_TIMEOUT_SECONDS = 20.0
# No client's namespace has this form (see namespace_of): the probe shares no cached prefix.
_PROBE_NAMESPACE = "health probe"


def health_router(context: ApiContext) -> APIRouter:
    """Return the router of /health, /ready and /health_generate; none of them needs a key."""
    router = APIRouter()

    @router.head("/health", include_in_schema=False)
    @router.get("/health")
    async def health() -> Response:
        """200 while the server takes requests; 503 while it starts, drains or is dead."""
        return _status(context)

    @router.head("/ready", include_in_schema=False)
    @router.get("/ready")
    async def ready() -> Response:
        """The same as /health: this server is ready as soon as it is up."""
        return _status(context)

    @router.get("/health_generate")
    async def health_generate(request: Request) -> Response:
        """200 if one token could be generated within 20 s."""
        await request.body()
        return await until_disconnect(request.receive, _generate_one(context))

    return router


def _status(context: ApiContext) -> Response:
    status = context.client.status
    if status == "up":
        return json_response({"status": status})
    return error_response(Overloaded(f"the server is {status}", code=status))


async def _generate_one(context: ApiContext) -> Response:
    spec = GenerationSpec(
        prompt=[0],
        sampling=SamplingParams(max_new_tokens=1, temperature=0.0, ignore_eos=True),
        namespace=_PROBE_NAMESPACE,
    )
    try:
        async with asyncio.timeout(GENERATE_TIMEOUT_SECONDS):
            (requests,) = await prepare_all(context.client, [spec])
            await collect(context.client, requests)
    except TimeoutError:
        raise Overloaded(
            f"no token came within {GENERATE_TIMEOUT_SECONDS:g} s", code="timeout"
        ) from None
    return _status(context)
