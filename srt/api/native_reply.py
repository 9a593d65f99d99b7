"""The answer of /generate and Engine.generate: text, output_ids and meta_info."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from ..messages import FinishReason, PositionLogprobs
from .generation import Completion

MIN_LOGPROB = -9999.0  # stands for minus infinity, which JSON cannot carry

TokenText = Callable[[int], str]


def native_reply(
    completion: Completion,
    token_text: TokenText | None = None,
    with_prompt_token_ids: bool = False,
) -> dict[str, Any]:
    """Return all that completion has so far, as the native API shows it.

    token_text fills the third place of logprob triples; without it that place is null.
    """
    reply: dict[str, Any] = {
        "text": completion.text,
        "output_ids": completion.token_ids,
        "meta_info": meta_info(
            completion, completion.prompt_logprobs, completion.output_logprobs, token_text
        ),
    }
    if with_prompt_token_ids:
        reply["prompt_token_ids"] = completion.request.input_ids
    return reply


def native_delta(
    completion: Completion,
    text: str,
    token_text: TokenText | None = None,
) -> dict[str, Any]:
    """Return the last delta of completion alone, whose new text is `text`."""
    last = completion.last
    return {
        "text": text,
        "output_ids": last.token_ids,
        "meta_info": meta_info(
            completion, last.prompt_logprobs, last.output_logprobs or (), token_text
        ),
    }


def meta_info(
    completion: Completion,
    prompt_logprobs: Sequence[PositionLogprobs] | None,
    output_logprobs: Sequence[PositionLogprobs],
    token_text: TokenText | None,
) -> dict[str, Any]:
    """Return the counters of completion with the given logprobs."""
    last, request = completion.last, completion.request
    now = completion.finished_seconds or time.monotonic()
    info: dict[str, Any] = {
        "id": request.rid,
        "finish_reason": finish_object(last.finish, last.completion_tokens),
        "prompt_tokens": last.prompt_tokens,
        "completion_tokens": last.completion_tokens,
        "cached_tokens": last.cached_tokens,
        "reasoning_tokens": 0,
        "num_retractions": last.num_retractions,
        "weight_version": "default",
        "e2e_latency": now - request.arrival_seconds,
        "queue_time": completion.queue_seconds,
    }
    if completion.dropped_keywords:
        info["dropped_schema_keywords"] = completion.dropped_keywords
    options = request.logprobs
    if options is None:
        return info
    prompt = prompt_logprobs or ()
    info["input_token_logprobs"] = [_triple(one, token_text) for one in prompt]
    info["output_token_logprobs"] = [_triple(one, token_text) for one in output_logprobs]
    info["output_token_logprobs_length"] = len(output_logprobs)
    if any(one.is_forced for one in output_logprobs):
        info["output_token_forced"] = [one.is_forced for one in output_logprobs]
    if options.num_top:
        info["input_top_logprobs"] = [_pairs(one.top, token_text) for one in prompt]
        info["output_top_logprobs"] = [_pairs(one.top, token_text) for one in output_logprobs]
    if options.token_ids:
        info["input_token_ids_logprobs"] = [_pairs(one.by_id, token_text) for one in prompt]
        info["output_token_ids_logprobs"] = [
            _pairs(one.by_id, token_text) for one in output_logprobs
        ]
    return info


def finish_object(finish: FinishReason | None, num_completion_tokens: int) -> dict[str, Any] | None:
    """Return finish as the native API's finish_reason; None while the request runs."""
    if finish is None:
        return None
    if finish.type == "stop":
        return {"type": "stop", "matched": finish.matched}
    if finish.type == "length":
        return {"type": "length", "length": num_completion_tokens}
    return {"type": "abort", "message": finish.message or "aborted by the client"}


def clamped(logprob: float) -> float:
    """Return logprob, or a number that JSON can carry if it is minus infinity or no number."""
    return logprob if logprob > MIN_LOGPROB else MIN_LOGPROB


def _triple(position: PositionLogprobs, token_text: TokenText | None) -> list[Any]:
    return _entry(position.logprob, position.token_id, token_text)


def _pairs(
    pairs: Sequence[tuple[float, int]] | None, token_text: TokenText | None
) -> list[list[Any]] | None:
    if pairs is None:
        return None
    return [_entry(logprob, token_id, token_text) for logprob, token_id in pairs]


def _entry(logprob: float | None, token_id: int, token_text: TokenText | None) -> list[Any]:
    return [
        None if logprob is None else clamped(logprob),
        token_id,
        None if token_text is None else token_text(token_id),
    ]
