"""The events of a streamed /v1/completions."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial
from typing import Any

from ..messages import TextDelta
from .completion_job import CompletionJob
from .context import ApiContext
from .event_stream import event
from .generation import Completion, follow_all
from .logprob_volume import pairs_new, rendered
from .openai_logprobs import CompletionLogprobs
from .openai_usage import usage_of


async def completion_events(context: ApiContext, job: CompletionJob) -> AsyncGenerator[bytes, None]:
    """Run job and yield its events: deltas per choice, then the usage if it was asked for.

    A choice's last event is the one with its finish_reason.
    """
    stream = _CompletionStream(context, job)
    with context.open_bodies.register(job.rid, job.requests):
        async with aclosing(follow_all(context.client, job.requests)) as deltas:
            async for index, delta in deltas:
                completion = stream.completions[index]
                completion.add(delta)
                render = partial(stream.events, index, delta)
                if events := await rendered(pairs_new(completion), render):
                    yield events
    if job.body.includes_usage:
        yield stream.usage_event()


class _CompletionStream:
    def __init__(self, context: ApiContext, job: CompletionJob) -> None:
        self._job = job
        self.completions = [Completion(one) for one in job.requests]
        self._logprobs = [CompletionLogprobs(context.client.tokenizer) for _ in job.requests]
        self._waiting_echoes: list[str] = list(job.echoes)
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
        if not text and not positions and finish is None:
            return b""
        choice: dict[str, Any] = {
            "index": index,
            "text": text,
            "logprobs": self._logprobs[index].of(positions),
            "finish_reason": None if finish is None else finish.type,
        }
        if finish is not None:
            choice["matched_stop"] = finish.matched
        chunk = {**self._head, "choices": [choice]}
        if self._job.body.has_usage_in_each_chunk:
            chunk["usage"] = usage_of(self.completions, self._job.num_samples)
        elif self._job.body.includes_usage:
            chunk["usage"] = None
        return event(chunk)

    def usage_event(self) -> bytes:
        """Return the last event, with no choices."""
        usage = usage_of(self.completions, self._job.num_samples)
        return event({**self._head, "choices": [], "usage": usage})
