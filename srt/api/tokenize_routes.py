"""POST /tokenize and /detokenize, also under /v1.

Long texts take seconds: all of this runs in one thread of its own, so that neither the event loop
nor the prompts of /generate wait for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from ..errors import BadRequest
from .chat_messages import Messages
from .chat_prompt import chat_prompt
from .context import ApiContext
from .disconnect import until_disconnect
from .json_response import json_response
from .openapi import takes
from .prompts import IdsOrLists, TextOrTexts, parse_prompts
from .request_body import Body, read_body
from .sampling_fields import AnyValue

# About 3 s of work, and 100 bytes of memory for each byte of text.
MAX_TEXT_BYTES = 2 << 20


class TokenizeBody(Body):
    """One of prompt (or text, its older name) and messages."""

    model: str | None = None
    prompt: TextOrTexts = None
    text: TextOrTexts = None
    messages: Messages | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, AnyValue] | None = None


class DetokenizeBody(Body):
    """Token ids, or a list of lists of them."""

    model: str | None = None
    tokens: IdsOrLists = None
    skip_special_tokens: bool | None = None


def tokenize_router(context: ApiContext) -> APIRouter:
    """Return the router of all four routes."""
    router = APIRouter()
    thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="tokenize-route")

    async def answer(request: Request, work: Callable[[], Response]) -> Response:
        in_thread = asyncio.get_running_loop().run_in_executor(thread, work)
        return await until_disconnect(request.receive, _wait(in_thread))

    async def tokenize(request: Request) -> Response:
        """Token ids of a text, a list of texts, or a conversation."""
        body = await read_body(request, TokenizeBody)
        return await answer(request, lambda: _tokenize(context, body))

    async def detokenize(request: Request) -> Response:
        """Text of token ids."""
        body = await read_body(request, DetokenizeBody)
        return await answer(request, lambda: _detokenize(context, body))

    for prefix, name in (("", "{}"), ("/v1", "v1_{}")):
        router.add_api_route(
            f"{prefix}/tokenize",
            tokenize,
            methods=["POST"],
            name=name.format("tokenize"),
            openapi_extra=takes(TokenizeBody),
        )
        router.add_api_route(
            f"{prefix}/detokenize",
            detokenize,
            methods=["POST"],
            name=name.format("detokenize"),
            openapi_extra=takes(DetokenizeBody),
        )
    return router


async def _wait(work: asyncio.Future[Response]) -> Response:
    return await work


def _tokenize(context: ApiContext, body: TokenizeBody) -> Response:
    context.check_model(body.model)
    texts, is_batch = _texts(context, body)
    _check_size(context, texts, "messages" if body.messages is not None else "prompt")
    # What a chat template writes has its special tokens already.
    with_special = body.add_special_tokens
    if with_special is None:
        with_special = body.messages is None
    ids = [context.client.tokenizer.encode(text, add_special_tokens=with_special) for text in texts]
    counts = [len(one) for one in ids]
    return json_response(
        {
            "tokens": ids if is_batch else ids[0],
            "count": counts if is_batch else counts[0],
            "max_model_len": context.client.facts.context_length,
        }
    )


def _texts(context: ApiContext, body: TokenizeBody) -> tuple[list[str], bool]:
    if body.messages is not None:
        text = chat_prompt(
            context.client,
            body.messages,
            add_generation_prompt=body.add_generation_prompt,
            continue_final_message=body.continue_final_message,
            template_fields=body.chat_template_kwargs,
        )
        return [text], False
    name, given = ("prompt", body.prompt) if body.prompt is not None else ("text", body.text)
    if given is None:
        raise BadRequest("prompt is missing; send prompt, text or messages", param="prompt")
    prompts, is_batch = parse_prompts(given, name)
    texts = [one for one in prompts if isinstance(one, str)]
    if len(texts) != len(prompts):
        raise BadRequest(f"{name} must be a string or a list of strings", param=name)
    return texts, is_batch


def _check_size(context: ApiContext, texts: list[str], param: str) -> None:
    most = max(MAX_TEXT_BYTES, 16 * context.client.facts.context_length)
    num_bytes = sum(len(text.encode("utf-8", errors="surrogatepass")) for text in texts)
    if num_bytes > most:
        raise BadRequest(
            f"{param} has {num_bytes} bytes of text; at most {most} are tokenised in one request",
            param=param,
        )


def _detokenize(context: ApiContext, body: DetokenizeBody) -> Response:
    context.check_model(body.model)
    lists, is_batch = _id_lists(body.tokens)
    vocab_size = context.client.model_config.vocab_size
    for ids in lists:
        for token_id in (min(ids), max(ids)) if ids else ():
            if not 0 <= token_id < vocab_size:
                raise BadRequest(
                    f"tokens contains {token_id}; ids go from 0 to {vocab_size - 1}", param="tokens"
                )
    skip = body.skip_special_tokens is not False
    texts = [
        context.client.tokenizer.decode(ids, skip_special_tokens=skip) if ids else ""
        for ids in lists
    ]
    answer: Any = texts if is_batch else texts[0]
    return json_response({"text": answer, "prompt": answer})


def _id_lists(tokens: Any) -> tuple[list[list[int]], bool]:
    if tokens is None:
        raise BadRequest("tokens is missing", param="tokens")
    if tokens == []:
        return [[]], False
    prompts, is_batch = parse_prompts(tokens, "tokens")
    lists = [one for one in prompts if not isinstance(one, str)]
    if len(lists) != len(prompts):
        raise BadRequest("tokens must be a list of token ids", param="tokens")
    return lists, is_batch
