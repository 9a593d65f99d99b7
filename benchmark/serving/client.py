"""Streaming client of OpenAI-compatible servers, made to cost little beside them.

While answers arrive it only notes the time of each piece of bytes; they are decoded after the
last one, so that parsing takes no CPU from the server that is being measured.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import Any

import httpx
import orjson

from .answers import Answer, Answers, CaseTimeout, NotAvailable
from .cases import Workload

_REFUSALS = {400, 404, 422, 501}


@dataclass(slots=True)
class _Arrivals:
    """The raw answer of one request: when each piece came, counted from sending."""

    started: float
    pieces: list[tuple[float, bytes]] = field(default_factory=list)
    ended: float = 0.0


def complete(
    base_url: str,
    model: str,
    workload: Workload,
    timeout_seconds: float,
    extra_fields: dict[str, Any] | None = None,
) -> Answers:
    """Send all prompts of workload at once, streamed and greedy; see answers.Peer.run."""
    try:
        return asyncio.run(
            asyncio.wait_for(
                _complete(base_url, model, workload, extra_fields or {}), timeout_seconds
            )
        )
    except TimeoutError:
        raise CaseTimeout(f"over {timeout_seconds:g} s") from None


async def _complete(
    base_url: str, model: str, workload: Workload, extra_fields: dict[str, Any]
) -> Answers:
    path = "/v1/completions" if workload.schema is None else "/v1/chat/completions"
    bodies = [{**_body(model, prompt, workload), **extra_fields} for prompt in workload.prompts]
    limits = httpx.Limits(max_connections=256, max_keepalive_connections=256)
    async with httpx.AsyncClient(
        base_url=base_url, timeout=None, limits=limits, trust_env=False, verify=False
    ) as client:
        started = time.perf_counter()
        arrivals = await asyncio.gather(*[_receive(client, path, body) for body in bodies])
        wall = time.perf_counter() - started
    return Answers(wall, [_decode(one) for one in arrivals])


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


async def _receive(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> _Arrivals:
    arrivals = _Arrivals(time.perf_counter())
    async with client.stream("POST", path, json=body) as response:
        if response.status_code != 200:
            text = (await response.aread()).decode("utf-8", "replace")[:300]
            if response.status_code in _REFUSALS:
                raise NotAvailable(f"{response.status_code}: {_message_of(text)}")
            raise RuntimeError(f"status {response.status_code}: {text}")
        async for piece in response.aiter_raw():
            arrivals.pieces.append((time.perf_counter(), piece))
    arrivals.ended = time.perf_counter()
    return arrivals


def _message_of(text: str) -> str:
    try:
        error = orjson.loads(text)["error"]
        return str(error["message"] if isinstance(error, dict) else error)
    except (ValueError, KeyError, TypeError):
        return text


def _decode(arrivals: _Arrivals) -> Answer:
    """Read the event stream; a line belongs to the piece in which it ends."""
    first: float | None = None
    last = arrivals.ended
    texts: list[str] = []
    usage: dict[str, Any] = {}
    cached: int | None = None
    rest = b""
    for when, piece in arrivals.pieces:
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
        first_seconds=(last if first is None else first) - arrivals.started,
        last_seconds=last - arrivals.started,
        output_tokens=int(usage.get("completion_tokens", len(texts))),
        prompt_tokens=usage.get("prompt_tokens"),
        cached_tokens=cached if details.get("cached_tokens") is None else details["cached_tokens"],
        text="".join(texts),
    )


def _text_of(choice: dict[str, Any]) -> str:
    text = choice.get("text")
    return text if text is not None else (choice.get("delta") or {}).get("content") or ""
