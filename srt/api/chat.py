"""POST /v1/chat/completions."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from .chat_job import ChatBody, chat_job
from .chat_reply import chat_reply
from .chat_stream import chat_events
from .chunk_writer import chunk_writer_of
from .context import ApiContext
from .disconnect import until_disconnect
from .event_stream import open_event_stream
from .generation import collect
from .http_boundary import name_request
from .json_response import json_response
from .logprob_volume import pairs_held, rendered
from .openapi import takes
from .request_body import read_body


def chat_router(context: ApiContext) -> APIRouter:
    """Return the router of /v1/chat/completions."""
    router = APIRouter()

    @router.post("/v1/chat/completions", openapi_extra=takes(ChatBody))
    async def chat_completions(request: Request) -> Response:
        """Answer a conversation, written out by the model's own chat template."""
        body = await read_body(request, ChatBody)
        return await until_disconnect(request.receive, _answer(context, request, body))

    return router


async def _answer(context: ApiContext, request: Request, body: ChatBody) -> Response:
    job = await chat_job(context, body)
    name_request(request, job.rid)
    if body.stream:
        return await open_event_stream(chat_events(context, job, chunk_writer_of(request.scope)))
    with context.open_bodies.register(job.rid, job.requests):
        completions = await collect(context.client, job.requests)
    return await rendered(
        pairs_held(*completions), lambda: json_response(chat_reply(context, job, completions))
    )
