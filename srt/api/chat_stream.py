"""The events of a streamed /v1/chat/completions."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial
from typing import Any

from ..messages import TextDelta
from .chat_answer import delta_of
from .chat_job import ChatJob
from .chunk_writer import ChunkWriter
from .context import ApiContext
from .event_stream import event
from .generation import Completion, follow_all
from .openai_logprobs import chat_logprobs
from .openai_usage import usage_of
from .text_event import TextEvent


async def chat_events(
    context: ApiContext, job: ChatJob, writer: ChunkWriter | None = None
) -> AsyncGenerator[bytes, None]:
    """Run job and yield its events, in this order for each choice: role, answer, one finish.

    The answer is thinking, then content and calls: of each call id and name, then its arguments.
    The usage chunk, if it was asked for, comes last and has no choices.
    """
    stream = _ChatStream(context, job)
    at_once = None if writer is None else partial(stream.write_at_once, writer)
    with context.open_bodies.register(job.rid, job.requests):
        async with aclosing(follow_all(context.client, job.requests, at_once)) as deltas:
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
        self._readers = [job.form.reader() for _ in job.requests]
        self._has_role = [False] * len(job.requests)
        self._text_events: list[TextEvent | None] = [None] * len(job.requests)
        self._has_usage_in_each_chunk = job.body.has_usage_in_each_chunk
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
        reader = self._readers[index]
        pieces = reader.push(delta.text)
        if finish is not None:
            pieces += reader.finish(finish)
        deltas = [delta_of(piece, self._job.form) for piece in pieces]
        logprobs = chat_logprobs(self._tokenizer, delta.progress.output_logprobs or ())
        if not deltas and logprobs is not None:
            deltas = [{"content": ""}]  # the text of these tokens is not certain yet
        for one in deltas:
            text = one.get("content")
            if text and logprobs is None and len(one) == 1 and not self._has_usage_in_each_chunk:
                events += self._text_event(index).of(text)
            else:
                events += self._event(index, one, logprobs)
            logprobs = None  # told once
        if finish is not None:
            reason: dict[str, Any] = {
                "finish_reason": reader.finish_reason(finish),
                "matched_stop": finish.matched,
            }
            if dropped := self._completions[index].dropped_keywords:
                reason["dropped_schema_keywords"] = dropped
            events += self._event(index, {}, finish=reason)
        return events

    def write_at_once(self, writer: ChunkWriter, delta: TextDelta) -> bool:
        """Write the events for delta, of a job's only request, if they are small and there is room.

        Returns whether they were written; if not, nothing has changed.
        """
        if delta.progress.output_logprobs is not None or not writer.is_ready:
            return False
        if events := self.events(0, delta):
            writer.write(events)
        return True

    def usage_event(self) -> bytes:
        """Return the last event, with no choices."""
        return event({**self._head, "choices": [], "usage": self._usage()})

    def _text_event(self, index: int) -> TextEvent:
        found = self._text_events[index]
        if found is None:
            found = TextEvent(lambda text: self._payload(index, {"content": text}))
            self._text_events[index] = found
        return found

    def _event(
        self,
        index: int,
        delta: dict[str, Any],
        logprobs: dict[str, Any] | None = None,
        finish: dict[str, Any] | None = None,
    ) -> bytes:
        return event(self._payload(index, delta, logprobs, finish))

    def _payload(
        self,
        index: int,
        delta: dict[str, Any],
        logprobs: dict[str, Any] | None = None,
        finish: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        choice: dict[str, Any] = {
            "index": index,
            "delta": delta,
            "logprobs": logprobs,
            "finish_reason": None,
        }
        if finish is not None:
            choice |= finish
        chunk = {**self._head, "choices": [choice]}
        if self._has_usage_in_each_chunk:
            chunk["usage"] = self._usage()
        elif self._job.body.includes_usage:
            chunk["usage"] = None
        return chunk

    def _usage(self) -> dict[str, Any]:
        return usage_of(self._completions, len(self._completions))
