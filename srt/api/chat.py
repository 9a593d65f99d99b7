"""POST /v1/chat/completions."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from .chat_answer import message_of
from .chat_job import ChatBody, ChatJob, chat_job
from .chat_stream import chat_events
from .chunk_writer import chunk_writer_of
from .context import ApiContext
from .disconnect import until_disconnect
from .event_stream import open_event_stream
from .generation import Completion, collect
from .http_boundary import name_request
from .json_response import json_response
from .logprob_volume import pairs_held, rendered
from .openai_logprobs import chat_logprobs
from .openai_usage import usage_of
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
        pairs_held(*completions), lambda: json_response(_reply(context, job, completions))
    )


def _reply(context: ApiContext, job: ChatJob, completions: list[Completion]) -> dict[str, Any]:
    return {
        "id": job.rid,
        "object": "chat.completion",
        "created": job.created_unix_seconds,
        "model": job.model_name,
        "choices": [_choice(context, job, i, one) for i, one in enumerate(completions)],
        "usage": usage_of(completions, len(completions)),
    }


def _choice(
    context: ApiContext, job: ChatJob, index: int, completion: Completion
) -> dict[str, Any]:
    finish = completion.last.finish
    assert finish is not None, f"request {completion.request.rid} ended without a finish"
    reader = job.form.reader()
    pieces = [*reader.push(completion.text), *reader.finish(finish)]
    return {
        "index": index,
        "message": message_of(pieces, job.form),
        "logprobs": chat_logprobs(context.client.tokenizer, completion.output_logprobs),
        "finish_reason": reader.finish_reason(finish),
        "matched_stop": finish.matched,
    }
