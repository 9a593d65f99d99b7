"""Streaming client of OpenAI-compatible servers, made to cost little beside them.

Events are read and decoded after the last byte of the last answer, so that parsing takes no CPU
from the server that is being measured.
"""

from __future__ import annotations

from typing import Any

import orjson

from .answers import Answer, Answers, NotAvailable
from .cases import Workload
from .streamed_posts import StreamedAnswer, post_all

_REFUSALS = {400, 404, 422, 501}


def complete(
    base_url: str,
    model: str,
    workload: Workload,
    timeout_seconds: float,
    extra_fields: dict[str, Any] | None = None,
) -> Answers:
    """Send all prompts of workload at once, streamed and greedy; see answers.Peer.run."""
    path = "/v1/completions" if workload.schema is None else "/v1/chat/completions"
    bodies = [
        orjson.dumps({**_body(model, prompt, workload), **(extra_fields or {})})
        for prompt in workload.prompts
    ]
    raw = post_all(base_url, path, bodies, timeout_seconds)
    wall = max(one.ended for one in raw) - min(one.started for one in raw)
    return Answers(wall, [_decode(one) for one in raw])


def _body(model: str, prompt: str, workload: Workload) -> dict[str, Any]:
    body: dict[str, Any] = {
        "model": model,
        "max_tokens": workload.max_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if workload.schema is None:
        return {**body, "prompt": prompt, "ignore_eos": True}
    schema = {"name": "shipment", "schema": workload.schema, "strict": True}
    return {
        **body,
        "messages": [{"role": "user", "content": prompt}],
        "response_format": {"type": "json_schema", "json_schema": schema},
    }


def _check_status(raw: StreamedAnswer) -> None:
    if raw.status == 200:
        return
    text = raw.body.decode("utf-8", "replace")[:300]
    if raw.status in _REFUSALS:
        raise NotAvailable(f"{raw.status}: {_message_of(text)}")
    raise RuntimeError(f"status {raw.status}: {text}")


def _message_of(text: str) -> str:
    try:
        error = orjson.loads(text)["error"]
        return str(error["message"] if isinstance(error, dict) else error)
    except (ValueError, KeyError, TypeError):
        return text


def _decode(raw: StreamedAnswer) -> Answer:
    """Read the event stream; a line belongs to the piece in which it ends."""
    _check_status(raw)
    first: float | None = None
    last = raw.ended
    texts: list[str] = []
    usage: dict[str, Any] = {}
    cached: int | None = None
    rest = b""
    for when, piece in raw.pieces:
        lines = (rest + piece).split(b"\n")
        rest = lines.pop()
        for line in lines:
            if not line.startswith(b"data:") or line[5:].strip() == b"[DONE]":
                continue
            event = orjson.loads(line[5:])
            if "error" in event:
                raise RuntimeError(f"error in the stream: {str(event['error'])[:300]}")
            usage = event.get("usage") or usage
            cached = (event.get("timings") or {}).get("cache_n", cached)
            if text := "".join(_text_of(choice) for choice in event.get("choices", [])):
                first = when if first is None else first
                last = when
                texts.append(text)
    details = usage.get("prompt_tokens_details") or {}
    return Answer(
        first_seconds=(last if first is None else first) - raw.started,
        last_seconds=last - raw.started,
        output_tokens=int(usage.get("completion_tokens", len(texts))),
        prompt_tokens=usage.get("prompt_tokens"),
        cached_tokens=cached if details.get("cached_tokens") is None else details["cached_tokens"],
        text="".join(texts),
    )


def _text_of(choice: dict[str, Any]) -> str:
    text = choice.get("text")
    return text if text is not None else (choice.get("delta") or {}).get("content") or ""
