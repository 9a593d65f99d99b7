"""Pinning a prefix: the body of /pin_prefix becomes a request that computes it and keeps it.

The same for HTTP and Engine. A prefix is computed like the prompt of a request for no tokens.
"""

from __future__ import annotations

import time
import uuid
from typing import Any

from ..errors import BadRequest, NotFound
from ..processes.engine_client import EngineClient
from ..processes.generation_spec import GenerationSpec
from ..sampling_params import SamplingParams
from .chat_messages import Messages
from .chat_prompt import chat_prompt
from .generation import collect, prepare_all
from .native_body import namespace_of
from .prompts import IdsOrLists, parse_prompts
from .request_body import Body
from .sampling_fields import AnyValue

MAX_TTL_SECONDS = 7 * 24 * 3600.0


class PinBody(Body):
    """One of text, input_ids and messages, and for how long; the salts are /generate's."""

    text: str | None = None
    input_ids: IdsOrLists = None
    messages: Messages | None = None
    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, AnyValue] | None = None
    ttl_seconds: float
    cache_salt: str | None = None
    extra_key: str | None = None


class UnpinBody(Body):
    """The id that /pin_prefix gave."""

    pin_id: str


async def pin_prefix(client: EngineClient, body: PinBody) -> dict[str, Any]:
    """Compute what is not cached of body's prefix, keep it, and return what JSON shows of the pin.

    Raises BadRequest, naming the field, for what cannot be pinned.
    """
    spec = _spec(client, body)
    (requests,) = await prepare_all(client, [spec])
    try:
        (completion,) = await collect(client, requests)
    except BadRequest as error:  # the scheduler does not know what the field is called
        raise BadRequest(
            f"{spec.prompt_field}: {error.message}", param=spec.prompt_field, code="pin_refused"
        ) from None
    last = completion.last
    if last.pin is None:  # not refused, so ended by /abort_request
        raise BadRequest("the prefix was not pinned: its request was aborted", code="pin_aborted")
    return {
        "pin_id": last.rid,
        "num_tokens": last.pin.num_tokens,
        "prompt_tokens": last.prompt_tokens,
        "cached_tokens": last.cached_tokens,
        "ttl_seconds": body.ttl_seconds,
        "expires_at": time.time() + last.pin.expiry_seconds - time.monotonic(),
    }


async def unpin_prefix(client: EngineClient, pin_id: str) -> dict[str, Any]:
    """End a pin and return what JSON shows; NotFound if there is none with this id any more."""
    num_tokens = await client.unpin_prefix(pin_id)
    if num_tokens is None:
        shown = pin_id if len(pin_id) <= 100 else pin_id[:100] + "..."
        raise NotFound(
            f"there is no pin {shown!r}; it has expired, was unpinned or flushed, or never was",
            param="pin_id",
            code="pin_not_found",
        )
    return {"success": True, "pin_id": pin_id, "num_tokens": num_tokens}


def _spec(client: EngineClient, body: PinBody) -> GenerationSpec:
    if not 0 < body.ttl_seconds <= MAX_TTL_SECONDS:
        raise BadRequest(
            f"ttl_seconds is {body.ttl_seconds:g}; it must be above 0 and at most "
            f"{MAX_TTL_SECONDS:g}",
            param="ttl_seconds",
        )
    given = {"text": body.text, "input_ids": body.input_ids, "messages": body.messages}
    fields = [name for name, value in given.items() if value is not None]
    if not fields:
        raise BadRequest("the prefix is missing; send text, input_ids or messages", param="text")
    if len(fields) > 1:
        raise BadRequest(f"{' and '.join(fields)} are given; send one of them", param=fields[1])
    return GenerationSpec(
        prompt=_prompt(client, body),
        sampling=SamplingParams(max_new_tokens=0),
        rid=f"pin-{uuid.uuid4().hex}",
        namespace=namespace_of(body.cache_salt, body.extra_key),
        add_special_tokens=body.messages is None,
        pin_seconds=body.ttl_seconds,
        prompt_field=fields[0],
    )


def _prompt(client: EngineClient, body: PinBody) -> str | list[int]:
    if body.text is not None:
        return body.text
    if body.messages is not None:
        return chat_prompt(
            client,
            body.messages,
            # What goes on after these messages is another one as often as an answer.
            add_generation_prompt=bool(body.add_generation_prompt),
            continue_final_message=None,
            template_fields=body.chat_template_kwargs,
        )
    prompts, is_batch = parse_prompts(body.input_ids, "input_ids")
    if is_batch or isinstance(prompts[0], str):
        raise BadRequest("input_ids must be a list of token ids", param="input_ids")
    return prompts[0]
