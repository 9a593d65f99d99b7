"""Scoring choices: the body of /score_choices becomes one request, its result an answer.

The same for HTTP and Engine.
"""

from __future__ import annotations

import time
from typing import Annotated, Any, Literal, get_args

from pydantic import FailFast, Field
from starlette.concurrency import run_in_threadpool

from ..errors import BadRequest
from ..messages import ChoiceLogprobs, ChoicePath, ChoiceSet
from ..processes.engine_client import EngineClient
from ..processes.generation_spec import GenerationSpec
from ..sampling_params import SamplingParams
from ..tokenization.choice_tokens import ChoiceTokens, choice_tokens, num_chars_to_encode
from .generation import Completion, collect, prepare_all
from .native_body import namespace_of
from .native_reply import clamped, finish_object
from .prompts import IdsOrLists, parse_prompts
from .request_body import Body

MAX_CHOICES = 1024
# Of all choices together: the scheduler looks at each of them a few times, between steps that
# others wait for.
MAX_CHOICE_TOKENS = 16384
MAX_TEXT_CHARS = 2 << 20  # about 3 s of tokenising
_THREAD_ABOVE_CHARS = 8192  # about 2 ms of it: as long as the event loop may stall

Method = Literal[
    "token_length_normalized",
    "greedy_token_selection",
    "unconditional_likelihood_normalized",
]


class ScoreBody(Body):
    """What stands before the choices, and the choices; the other fields are /generate's.

    text alone is a prompt. After input_ids, the tokens of a conversation so far, it is what the
    open message says already.
    """

    text: str | None = None
    input_ids: IdsOrLists = None
    choices: Annotated[list[str], FailFast(), Field(min_length=1, max_length=MAX_CHOICES)]
    choices_method: str | None = None
    early_exit: bool | None = None
    rid: str | None = None
    cache_salt: str | None = None
    extra_key: str | None = None
    priority: int | None = None
    timeout_seconds: float | None = None
    program_id: str | None = None
    branch_id: str | None = None


async def score_choices(client: EngineClient, body: ScoreBody) -> dict[str, Any]:
    """Score body's choices in one request and return what JSON shows; raises BadRequest.

    Cancelling it aborts the request.
    """
    (requests,) = await prepare_all(client, [await choice_spec(client, body)])
    (completion,) = await collect(client, requests)
    return choice_reply(completion)


async def choice_spec(client: EngineClient, body: ScoreBody) -> GenerationSpec:
    """What body asks for, in tokens."""
    method = _method(body.choices_method)
    header_ids, text = _prompt(body)
    _check_choices(body.choices)
    num_chars = num_chars_to_encode(text, body.choices)
    if num_chars > MAX_TEXT_CHARS:
        raise BadRequest(
            f"text and choices take {num_chars} characters to tokenise, as each choice is "
            f"tokenised with the last words before it; at most {MAX_TEXT_CHARS} are taken",
            param="text",
        )
    arguments = (client.tokenizer, header_ids, text, body.choices)
    tokens: ChoiceTokens
    if num_chars > _THREAD_ABOVE_CHARS:
        tokens = await run_in_threadpool(choice_tokens, *arguments)
    else:
        tokens = choice_tokens(*arguments)
    num_tokens = sum(len(one.token_ids) for one in tokens.paths)
    if num_tokens > MAX_CHOICE_TOKENS:
        raise BadRequest(
            f"choices have {num_tokens} tokens together; at most {MAX_CHOICE_TOKENS} are scored in "
            "one request",
            param="choices",
        )
    return GenerationSpec(
        prompt=tokens.prompt_ids,
        sampling=SamplingParams(max_new_tokens=0),
        rid=body.rid,
        namespace=namespace_of(body.cache_salt, body.extra_key),
        priority=body.priority or 0,
        timeout_seconds=body.timeout_seconds,
        program_id=body.program_id,
        branch_id=body.branch_id,
        prompt_field="text" if body.input_ids is None else "input_ids",
        choices=ChoiceSet(paths=tokens.paths, method=method, early_exit=bool(body.early_exit)),
    )


def choice_reply(completion: Completion) -> dict[str, Any]:
    """The answer: the scored tokens of each choice, null where early exit has left one out."""
    request, last = completion.request, completion.last
    choices = request.choices
    assert choices is not None and last.choice_logprobs is not None, request.rid
    found = zip(choices.paths, last.choice_logprobs, strict=True)
    now = completion.finished_seconds or time.monotonic()
    return {
        "choices": [_choice(path, one) for path, one in found],
        "meta_info": {
            "id": request.rid,
            "finish_reason": finish_object(last.finish, 0),
            "choices_method": choices.method,
            "prompt_tokens": last.prompt_tokens,
            "cached_tokens": last.cached_tokens,
            "num_retractions": last.num_retractions,
            "e2e_latency": now - request.arrival_seconds,
            "queue_time": completion.queue_seconds,
        },
    }


def _choice(path: ChoicePath, found: ChoiceLogprobs) -> dict[str, Any]:
    alone = found.unconditional
    return {
        "token_ids": path.token_ids[path.num_unscored :],
        "logprobs": _shown(found.logprobs),
        "unconditional_logprobs": None if alone is None else _shown(alone),
    }


def _shown(values: list[float | None]) -> list[float | None]:
    return [None if one is None else clamped(one) for one in values]


def _method(given: str | None) -> Method:
    for method in get_args(Method):
        if given in (None, method):
            found: Method = method
            return found
    known = ", ".join(get_args(Method))
    raise BadRequest(
        f"choices_method is {str(given)[:80]!r}; it must be one of {known}", param="choices_method"
    )


def _prompt(body: ScoreBody) -> tuple[list[int] | None, str]:
    if body.input_ids is None:
        if body.text is None:
            raise BadRequest("the prompt is missing; send text or input_ids", param="text")
        return None, body.text
    if body.input_ids == []:
        return [], body.text or ""
    prompts, is_batch = parse_prompts(body.input_ids, "input_ids")
    if is_batch or isinstance(prompts[0], str):
        raise BadRequest("input_ids must be a list of token ids", param="input_ids")
    return prompts[0], body.text or ""


def _check_choices(choices: list[str]) -> None:
    seen: set[str] = set()
    for index, one in enumerate(choices):
        if not one:
            raise BadRequest(f"choices.{index} is empty", param=f"choices.{index}")
        if one in seen:
            raise BadRequest(
                f"choices.{index} is {one[:80]!r}, as one before it", param=f"choices.{index}"
            )
        seen.add(one)
