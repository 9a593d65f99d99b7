"""The events of a streamed /v1/completions."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from ..messages import TextDelta
from .completion_job import CompletionJob
from .context import ApiContext
from .event_stream import event
from .generation import Completion, follow_all
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
                if (chunk := stream.chunk(index, delta)) is not None:
                    yield event(chunk)
    if job.body.includes_usage:
        yield event(stream.usage_chunk())


class _CompletionStream:
    def __init__(self, context: ApiContext, job: CompletionJob) -> None:
        self._job = job
        self._completions = [Completion(one) for one in job.requests]
        self._logprobs = [CompletionLogprobs(context.client.tokenizer) for _ in job.requests]
        self._waiting_echoes: list[str] = list(job.echoes)
        self._head = {
            "id": job.rid,
            "object": "text_completion",
            "created": job.created_unix_seconds,
            "model": job.model_name,
        }

    def chunk(self, index: int, delta: TextDelta) -> dict[str, Any] | None:
        """Return the chunk for delta, None if it shows nothing new."""
        self._completions[index].add(delta)
        progress = delta.progress
        text = self._waiting_echoes[index] + delta.text
        self._waiting_echoes[index] = ""
        positions = [*(progress.prompt_logprobs or ()), *(progress.output_logprobs or ())]
        finish = progress.finish
        if not text and not positions and finish is None:
            return None
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
            chunk["usage"] = usage_of(self._completions, self._job.num_samples)
        elif self._job.body.includes_usage:
            chunk["usage"] = None
        return chunk

    def usage_chunk(self) -> dict[str, Any]:
        """Return the last chunk, with no choices."""
        usage = usage_of(self._completions, self._job.num_samples)
        return {**self._head, "choices": [], "usage": usage}
