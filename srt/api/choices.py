"""POST /score_choices: how likely each of several texts is after a prompt, in one call."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from .choice_job import ScoreBody, choice_reply, choice_spec
from .context import ApiContext
from .disconnect import until_disconnect
from .generation import collect, prepare_all
from .http_boundary import name_request
from .json_response import json_response
from .openapi import takes
from .request_body import read_body


def choices_router(context: ApiContext) -> APIRouter:
    """Return the router of /score_choices."""
    router = APIRouter()

    @router.post("/score_choices", openapi_extra=takes(ScoreBody))
    async def score(request: Request) -> Response:
        """Log-probabilities of each choice's tokens after the prompt; nothing is drawn."""
        body = await read_body(request, ScoreBody)
        return await until_disconnect(request.receive, _answer(context, request, body))

    return router


async def _answer(context: ApiContext, request: Request, body: ScoreBody) -> Response:
    spec = await choice_spec(context.client, body)
    (requests,) = await prepare_all(context.client, [spec])
    rid = requests[0].rid
    name_request(request, rid)
    with context.open_bodies.register(rid, requests):
        (completion,) = await collect(context.client, requests)
    return json_response(choice_reply(completion))
