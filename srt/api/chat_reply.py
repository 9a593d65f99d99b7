"""The JSON of a whole answer of /v1/chat/completions."""

from __future__ import annotations

from typing import Any

from .chat_answer import message_of
from .chat_job import ChatJob
from .context import ApiContext
from .generation import Completion
from .openai_logprobs import chat_logprobs
from .openai_usage import usage_of


def chat_reply(context: ApiContext, job: ChatJob, completions: list[Completion]) -> dict[str, Any]:
    """Return the answer to job, whose requests have ended in completions."""
    return {
        "id": job.rid,
        "object": "chat.completion",
        "created": job.created_unix_seconds,
        "model": job.model_name,
        "choices": [_choice(context, job, i, one) for i, one in enumerate(completions)],
        "usage": usage_of(completions, len(completions)),
    }


def _choice(
    context: ApiContext, job: ChatJob, index: int, completion: Completion
) -> dict[str, Any]:
    finish = completion.last.finish
    assert finish is not None, f"request {completion.request.rid} ended without a finish"
    reader = job.form.reader()
    pieces = [*reader.push(completion.text), *reader.finish(finish)]
    choice = {
        "index": index,
        "message": message_of(pieces, job.form),
        "logprobs": chat_logprobs(context.client.tokenizer, completion.output_logprobs),
        "finish_reason": reader.finish_reason(finish),
        "matched_stop": finish.matched,
    }
    if completion.dropped_keywords:
        choice["dropped_schema_keywords"] = completion.dropped_keywords
    return choice
