"""The events of a streamed /v1/chat/completions."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from ..messages import TextDelta
from .chat_job import ChatJob
from .context import ApiContext
from .event_stream import event
from .generation import Completion, follow_all
from .openai_logprobs import chat_logprobs
from .openai_usage import usage_of


async def chat_events(context: ApiContext, job: ChatJob) -> AsyncGenerator[bytes, None]:
    """Run job and yield its events, in this order for each choice: role, content, one finish.

    The usage chunk, if it was asked for, comes last and has no choices.
    """
    stream = _ChatStream(context, job)
    with context.open_bodies.register(job.rid, job.requests):
        async with aclosing(follow_all(context.client, job.requests)) as deltas:
            async for index, delta in deltas:
                if events := stream.events(index, delta):
                    yield events
    if job.body.includes_usage:
        yield stream.usage_event()


class _ChatStream:
    def __init__(self, context: ApiContext, job: ChatJob) -> None:
        self._job = job
        self._tokenizer = context.client.tokenizer
        self._completions = [Completion(one) for one in job.requests]
        self._has_role = [False] * len(job.requests)
        self._head = {
            "id": job.rid,
            "object": "chat.completion.chunk",
            "created": job.created_unix_seconds,
            "model": job.model_name,
        }

    def events(self, index: int, delta: TextDelta) -> bytes:
        """Return the events that delta causes, possibly none."""
        self._completions[index].add(delta)
        finish = delta.progress.finish
        events = b""
        if not self._has_role[index]:
            self._has_role[index] = True
            events += self._event(index, {"role": "assistant", "content": ""})
        logprobs = chat_logprobs(self._tokenizer, delta.progress.output_logprobs or ())
        if delta.text or logprobs is not None:
            events += self._event(index, {"content": delta.text}, logprobs)
        if finish is not None:
            events += self._event(
                index, {}, finish={"finish_reason": finish.type, "matched_stop": finish.matched}
            )
        return events

    def usage_event(self) -> bytes:
        """Return the last event, with no choices."""
        return event({**self._head, "choices": [], "usage": self._usage()})

    def _event(
        self,
        index: int,
        delta: dict[str, Any],
        logprobs: dict[str, Any] | None = None,
        finish: dict[str, Any] | None = None,
    ) -> bytes:
        choice: dict[str, Any] = {
            "index": index,
            "delta": delta,
            "logprobs": logprobs,
            "finish_reason": None,
        }
        if finish is not None:
            choice |= finish
        chunk = {**self._head, "choices": [choice]}
        if self._job.body.has_usage_in_each_chunk:
            chunk["usage"] = self._usage()
        elif self._job.body.includes_usage:
            chunk["usage"] = None
        return event(chunk)

    def _usage(self) -> dict[str, Any]:
        return usage_of(self._completions, len(self._completions))
