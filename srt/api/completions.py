"""POST /v1/completions."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from .chunk_writer import chunk_writer_of
from .completion_job import CompletionBody, CompletionJob, completion_job
from .completions_stream import completion_events
from .context import ApiContext
from .disconnect import until_disconnect
from .event_stream import open_event_stream
from .generation import Completion, collect
from .http_boundary import name_request
from .json_response import json_response
from .logprob_volume import pairs_held, rendered
from .openai_logprobs import CompletionLogprobs
from .openai_usage import usage_of
from .openapi import takes
from .request_body import read_body


def completions_router(context: ApiContext) -> APIRouter:
    """Return the router of /v1/completions."""
    router = APIRouter()

    @router.post("/v1/completions", openapi_extra=takes(CompletionBody))
    async def completions(request: Request) -> Response:
        """Continue one prompt or several, given as text or token ids."""
        body = await read_body(request, CompletionBody)
        return await until_disconnect(request.receive, _answer(context, request, body))

    return router


async def _answer(context: ApiContext, request: Request, body: CompletionBody) -> Response:
    job = await completion_job(context, body)
    name_request(request, job.rid)
    if body.stream:
        return await open_event_stream(
            completion_events(context, job, chunk_writer_of(request.scope))
        )
    with context.open_bodies.register(job.rid, job.requests):
        completions = await collect(context.client, job.requests)
    return await rendered(
        pairs_held(*completions), lambda: json_response(_reply(context, job, completions))
    )


def _reply(
    context: ApiContext, job: CompletionJob, completions: list[Completion]
) -> dict[str, Any]:
    return {
        "id": job.rid,
        "object": "text_completion",
        "created": job.created_unix_seconds,
        "model": job.model_name,
        "choices": [_choice(context, job, i, one) for i, one in enumerate(completions)],
        "usage": usage_of(completions, job.num_samples),
    }


def _choice(
    context: ApiContext, job: CompletionJob, index: int, completion: Completion
) -> dict[str, Any]:
    finish = completion.last.finish
    assert finish is not None, f"request {completion.request.rid} ended without a finish"
    positions = [*(completion.prompt_logprobs or ()), *completion.output_logprobs]
    choice: dict[str, Any] = {
        "index": index,
        "text": job.echoes[index] + completion.text,
        "logprobs": CompletionLogprobs(context.client.tokenizer).of(positions),
        "finish_reason": finish.type,
        "matched_stop": finish.matched,
    }
    if completion.dropped_keywords:
        choice["dropped_schema_keywords"] = completion.dropped_keywords
    return choice
