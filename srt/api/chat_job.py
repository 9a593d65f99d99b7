"""The body of /v1/chat/completions and what it becomes: one request per choice."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from ..errors import BadRequest
from ..messages import GenerateRequest
from ..processes.generation_spec import GenerationSpec
from ..sampling_params import LogprobOptions
from .chat_messages import Messages
from .chat_prompt import chat_prompt
from .context import ApiContext
from .generation import prepare_all
from .openai_fields import OpenAiFields, new_id, with_openai_names
from .sampling_fields import AnyValue
from .unavailable import refuse_if_set

MAX_TOP_LOGPROBS = 20


class ChatBody(OpenAiFields):
    """The body of /v1/chat/completions."""

    messages: Messages
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, AnyValue] | None = None
    tools: AnyValue = None
    tool_choice: AnyValue = None
    functions: AnyValue = None
    function_call: AnyValue = None
    reasoning_effort: AnyValue = None
    modalities: AnyValue = None
    audio: AnyValue = None

    def explicit(self) -> dict[str, Any]:
        """Return what is set, as SamplingParams fields; refuse what is not offered (BadRequest)."""
        refuse_if_set("tool calling", tools=self.tools, functions=self.functions)
        if self.tool_choice not in ("none", "auto"):
            refuse_if_set("tool calling", tool_choice=self.tool_choice)
        if self.function_call not in ("none", "auto"):
            refuse_if_set("tool calling", function_call=self.function_call)
        if self.reasoning_effort != "none":
            refuse_if_set("reasoning control", reasoning_effort=self.reasoning_effort)
        if self.modalities != ["text"]:
            refuse_if_set("output other than text", modalities=self.modalities)
        refuse_if_set("audio output", audio=self.audio)
        values = super().explicit()
        if self.max_completion_tokens is not None:
            values["max_new_tokens"] = self.max_completion_tokens
        return values


@dataclass(frozen=True, slots=True)
class ChatJob:
    """A checked body and its requests, one per choice."""

    rid: str
    body: ChatBody
    model_name: str
    created_unix_seconds: int
    requests: list[GenerateRequest]


async def chat_job(context: ApiContext, body: ChatBody) -> ChatJob:
    """Check body whole and prepare its requests; nothing is sent yet. Raises ServingError."""
    context.check_model(body.model)
    try:
        return await _job(context, body)
    except BadRequest as error:
        is_new_name = body.max_completion_tokens is not None
        limit_name = "max_completion_tokens" if is_new_name else "max_tokens"
        raise with_openai_names(error, limit_name=limit_name) from None


async def _job(context: ApiContext, body: ChatBody) -> ChatJob:
    explicit = body.explicit()
    rid = body.rid if body.rid is not None else new_id("chatcmpl")
    spec = GenerationSpec(
        prompt=chat_prompt(
            context.client,
            body.messages,
            add_generation_prompt=body.add_generation_prompt,
            continue_final_message=body.continue_final_message,
            template_fields=body.chat_template_kwargs,
        ),
        # A chat answer ends where the model ends it, at the latest with the context.
        sampling=context.sampling_defaults.resolve(explicit, max_new_tokens=None),
        logprobs=_logprob_options(body),
        stream=bool(body.stream),
        rid=rid,
        namespace=body.namespace,
        priority=body.priority or 0,
        timeout_seconds=body.timeout_seconds,
        add_special_tokens=False,  # the template has written them
        clamp_max_new_tokens="max_new_tokens" not in explicit,
        prompt_field="messages",
    )
    (requests,) = await prepare_all(context.client, [spec])
    return ChatJob(
        rid=rid,
        body=body,
        model_name=context.model_name,
        created_unix_seconds=int(time.time()),
        requests=requests,
    )


def _logprob_options(body: ChatBody) -> LogprobOptions | None:
    num_top = body.top_logprobs or 0
    if not 0 <= num_top <= MAX_TOP_LOGPROBS:
        raise BadRequest(
            f"top_logprobs is {num_top}; it must be from 0 to {MAX_TOP_LOGPROBS}",
            param="top_logprobs",
        )
    if num_top and not body.logprobs:
        raise BadRequest("top_logprobs needs logprobs to be true", param="top_logprobs")
    return LogprobOptions(num_top=num_top) if body.logprobs else None
