"""POST|PUT /generate: the native route."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from ..messages import GenerateRequest
from .context import ApiContext
from .disconnect import until_disconnect
from .event_stream import event, open_event_stream
from .generation import Completion, collect, follow_all, prepare_all
from .http_boundary import name_request
from .json_response import json_response
from .logprob_volume import CumulativePace, pairs_held, pairs_new, rendered
from .native_body import GenerateBody, NativeJob, native_job
from .native_reply import TokenText, native_delta, native_reply
from .openapi import takes
from .request_body import read_body


def native_router(context: ApiContext) -> APIRouter:
    """Return the router of /generate."""
    router = APIRouter()

    @router.post("/generate", openapi_extra=takes(GenerateBody))
    async def generate(request: Request) -> Response:
        """Continue one prompt or a batch, given as text or token ids."""
        return await _generate(context, request)

    @router.put("/generate", openapi_extra=takes(GenerateBody))
    async def generate_by_put(request: Request) -> Response:
        """The same as POST."""
        return await _generate(context, request)

    return router


async def _generate(context: ApiContext, request: Request) -> Response:
    body = await read_body(request, GenerateBody)
    return await until_disconnect(request.receive, _answer(context, request, body))


async def _answer(context: ApiContext, request: Request, body: GenerateBody) -> Response:
    job = native_job(body, context.sampling_defaults)
    name_request(request, job.rid)
    with context.open_bodies.preparing(job.rid, job.specs):
        prepared = await prepare_all(context.client, job.specs)
    requests = [one for samples in prepared for one in samples]
    token_text = context.client.tokenizer.token_text if body.return_text_in_logprobs else None
    if body.stream:
        return await open_event_stream(_events(context, job, requests, token_text))
    with context.open_bodies.register(job.rid, requests):
        completions = await collect(context.client, requests)
    with_prompt = bool(body.return_prompt_token_ids)

    def answer() -> Response:
        replies = [native_reply(one, token_text, with_prompt) for one in completions]
        return json_response(replies if job.is_list else replies[0])

    return await rendered(pairs_held(*completions), answer)


async def _events(
    context: ApiContext,
    job: NativeJob,
    requests: list[GenerateRequest],
    token_text: TokenText | None,
) -> AsyncGenerator[bytes, None]:
    incremental = context.args.incremental_streaming_output
    completions = [Completion(one) for one in requests]
    paces = [CumulativePace() for _ in requests]
    with context.open_bodies.register(job.rid, requests):
        async with aclosing(follow_all(context.client, requests)) as deltas:
            async for index, delta in deltas:
                completion = completions[index]
                completion.add(delta)
                if not incremental and not paces[index].is_due(completion):
                    continue
                shown_index = index if job.is_list else None
                render = partial(
                    _event,
                    completion,
                    token_text,
                    new_text=delta.text if incremental else None,
                    index=shown_index,
                )
                num_pairs = pairs_new(completion) if incremental else pairs_held(completion)
                yield await rendered(num_pairs, render)


def _event(
    completion: Completion,
    token_text: TokenText | None,
    *,
    new_text: str | None,
    index: int | None,
) -> bytes:
    """Return the event for the last delta alone, whose text is new_text, or for all so far."""
    if new_text is None:
        payload = native_reply(completion, token_text)
    else:
        payload = native_delta(completion, new_text, token_text)
    if index is not None:
        payload["index"] = index
    return event(payload)
