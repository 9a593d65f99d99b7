"""The events of a streamed /v1/completions."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial
from typing import Any

from ..messages import FinishReason, TextDelta
from .chunk_writer import ChunkWriter
from .completion_job import CompletionJob
from .context import ApiContext
from .event_stream import event
from .generation import Completion, follow_all
from .logprob_volume import pairs_new, rendered
from .openai_logprobs import CompletionLogprobs
from .openai_usage import usage_of
from .text_event import TextEvent


async def completion_events(
    context: ApiContext, job: CompletionJob, writer: ChunkWriter | None = None
) -> AsyncGenerator[bytes, None]:
    """Run job and yield its events: deltas per choice, then the usage if it was asked for.

    A choice's last event is the one with its finish_reason.
    """
    stream = _CompletionStream(context, job)
    at_once = None if writer is None else partial(stream.write_at_once, writer)
    with context.open_bodies.register(job.rid, job.requests):
        async with aclosing(follow_all(context.client, job.requests, at_once)) as deltas:
            async for index, delta in deltas:
                completion = stream.completions[index]
                completion.add(delta)
                if num_pairs := pairs_new(completion):
                    events = await rendered(num_pairs, partial(stream.events, index, delta))
                else:
                    events = stream.events(index, delta)
                if events:
                    yield events
    if job.body.includes_usage:
        yield stream.usage_event()


class _CompletionStream:
    def __init__(self, context: ApiContext, job: CompletionJob) -> None:
        self._job = job
        self.completions = [Completion(one) for one in job.requests]
        self._logprobs = [CompletionLogprobs(context.client.tokenizer) for _ in job.requests]
        self._waiting_echoes: list[str] = list(job.echoes)
        self._text_events: list[TextEvent | None] = [None] * len(job.requests)
        self._has_usage_in_each_chunk = job.body.has_usage_in_each_chunk
        self._head = {
            "id": job.rid,
            "object": "text_completion",
            "created": job.created_unix_seconds,
            "model": job.model_name,
        }

    def events(self, index: int, delta: TextDelta) -> bytes:
        """Return the event for delta, which its completion has; b"" if it shows nothing new."""
        progress = delta.progress
        text = self._waiting_echoes[index] + delta.text
        self._waiting_echoes[index] = ""
        positions = [*(progress.prompt_logprobs or ()), *(progress.output_logprobs or ())]
        finish = progress.finish
        if not positions and finish is None:
            if not text:
                return b""
            if not self._has_usage_in_each_chunk:
                return self._text_event(index).of(text)
        return event(self._payload(index, text, self._logprobs[index].of(positions), finish))

    def _text_event(self, index: int) -> TextEvent:
        found = self._text_events[index]
        if found is None:
            found = TextEvent(lambda text: self._payload(index, text, None, None))
            self._text_events[index] = found
        return found

    def _payload(
        self, index: int, text: str, logprobs: dict[str, Any] | None, finish: FinishReason | None
    ) -> dict[str, Any]:
        choice: dict[str, Any] = {
            "index": index,
            "text": text,
            "logprobs": logprobs,
            "finish_reason": None if finish is None else finish.type,
        }
        if finish is not None:
            choice["matched_stop"] = finish.matched
            if dropped := self.completions[index].dropped_keywords:
                choice["dropped_schema_keywords"] = dropped
        chunk = {**self._head, "choices": [choice]}
        if self._has_usage_in_each_chunk:
            chunk["usage"] = usage_of(self.completions, self._job.num_samples)
        elif self._job.body.includes_usage:
            chunk["usage"] = None
        return chunk

    def write_at_once(self, writer: ChunkWriter, delta: TextDelta) -> bool:
        """Write the events for delta, of a job's only request, if they are small and there is room.

        Returns whether they were written; if not, nothing has changed.
        """
        if delta.progress.output_logprobs is not None or not writer.is_ready:
            return False
        self.completions[0].add(delta)
        if events := self.events(0, delta):
            writer.write(events)
        return True

    def usage_event(self) -> bytes:
        """Return the last event, with no choices."""
        usage = usage_of(self.completions, self._job.num_samples)
        return event({**self._head, "choices": [], "usage": usage})
