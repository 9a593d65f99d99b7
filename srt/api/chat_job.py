"""The body of /v1/chat/completions and what it becomes: one request per choice."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from runtime.grammars.spec import GrammarSpec

from ..errors import BadRequest
from ..messages import GenerateRequest
from ..processes.engine_client import EngineClient
from ..processes.generation_spec import GenerationSpec
from ..sampling_params import LogprobOptions
from ..tool_calls.call_grammar import tool_grammar
from ..tool_calls.tool import ToolUse
from .chat_answer import AnswerForm
from .chat_messages import Messages
from .chat_prompt import chat_prompt, tool_family
from .chat_thinking import ChatThinking, chat_thinking, effort_fields, thinking_budget
from .chat_tools import parse_tool_use
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
    parallel_tool_calls: bool | None = None
    separate_reasoning: bool | None = None
    stream_reasoning: bool | None = None
    max_thinking_tokens: int | None = None
    thinking_budget: int | None = None
    functions: AnyValue = None
    function_call: AnyValue = None
    reasoning_effort: str | None = None
    modalities: AnyValue = None
    audio: AnyValue = None

    def explicit(self) -> dict[str, Any]:
        """Return what is set, as SamplingParams fields; refuse what is not offered (BadRequest)."""
        older = "the older form of tools, for which tools and tool_choice stand now,"
        refuse_if_set(older, functions=self.functions)
        if self.function_call not in ("none", "auto"):
            refuse_if_set(older, function_call=self.function_call)
        if self.modalities != ["text"]:
            refuse_if_set("output other than text", modalities=self.modalities)
        refuse_if_set("audio output", audio=self.audio)
        values = super().explicit()
        if self.max_completion_tokens is not None:
            if self.max_tokens not in (None, self.max_completion_tokens):
                raise BadRequest(
                    f"max_tokens is {self.max_tokens} and max_completion_tokens is "
                    f"{self.max_completion_tokens}; they are two names of one field, send one",
                    param="max_completion_tokens",
                )
            values["max_new_tokens"] = self.max_completion_tokens
        return values

    @property
    def template_fields(self) -> dict[str, Any]:
        """The variables of the chat template that the body sets; raises BadRequest."""
        return {**effort_fields(self.reasoning_effort), **(self.chat_template_kwargs or {})}

    def _refuse_reasoning(self) -> None:
        refuse_if_set("reasoning control", require_reasoning=self.require_reasoning)


@dataclass(frozen=True, slots=True)
class ChatJob:
    """A checked body, its requests, one per choice, and how their answers are read."""

    rid: str
    body: ChatBody
    model_name: str
    created_unix_seconds: int
    requests: list[GenerateRequest]
    form: AnswerForm


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
    use = parse_tool_use(body.tools, body.tool_choice, body.parallel_tool_calls)
    prompt = chat_prompt(
        context.client,
        body.messages,
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=body.continue_final_message,
        template_fields=body.template_fields,
        tools=use,
    )
    output = _output(context, body, use, prompt)
    if _has_control_marks(context.client, output.form):
        explicit["skip_special_tokens"] = False
    spec = GenerationSpec(
        prompt=prompt,
        # A chat answer ends where the model ends it, at the latest with the context.
        sampling=context.sampling_defaults.resolve(explicit, max_new_tokens=None),
        logprobs=_logprob_options(body),
        stream=bool(body.stream),
        rid=rid,
        namespace=body.namespace,
        priority=body.priority or 0,
        timeout_seconds=body.timeout_seconds,
        program_id=body.program_id,
        branch_id=body.branch_id,
        add_special_tokens=False,  # the template has written them
        clamp_max_new_tokens="max_new_tokens" not in explicit,
        prompt_field="messages",
        grammar=output.grammar,
        grammar_field=output.grammar_field,
    )
    (requests,) = await prepare_all(context.client, [spec])
    return ChatJob(
        rid=rid,
        body=body,
        model_name=context.model_name,
        created_unix_seconds=int(time.time()),
        requests=requests,
        form=output.form,
    )


@dataclass(frozen=True, slots=True)
class _Output:
    """What the answers of a body must follow, and how they are read."""

    form: AnswerForm
    grammar: GrammarSpec | None
    grammar_field: str | None


def _output(context: ApiContext, body: ChatBody, use: ToolUse | None, prompt: str) -> _Output:
    whitespace = body.whitespace(context.sampling_defaults.json_whitespace)
    thinking = _thinking(context, body, prompt)
    answer = body.grammar(whitespace)
    grammar = None if answer is None else answer.spec
    field = None if answer is None else answer.param
    form = AnswerForm(thinking)
    if use is not None and use.callable_tools:
        family = tool_family(context.client)
        grammar = tool_grammar(
            use,
            family,
            special_ids=_control_tokens(context.client, family.markers),
            whitespace=whitespace,
            answer=grammar,
        )
        names = frozenset(one.name for one in use.callable_tools)
        form = AnswerForm(thinking, family, names, has_grammar=grammar is not None)
        field = field or "tools"
    if thinking is not None:
        grammar = thinking.grammar(grammar)
    return _Output(form, grammar, field)


def _thinking(context: ApiContext, body: ChatBody, prompt: str) -> ChatThinking | None:
    is_old_name = body.thinking_budget is None
    return chat_thinking(
        context.args.reasoning_parser,
        prompt,
        template_fields=body.template_fields,
        is_continued=bool(body.continue_final_message),
        separates=body.separate_reasoning,
        streams=body.stream_reasoning,
        budget=thinking_budget(
            thinking_budget=body.thinking_budget, max_thinking_tokens=body.max_thinking_tokens
        ),
        budget_field="max_thinking_tokens" if is_old_name else "thinking_budget",
    )


def _has_control_marks(client: EngineClient, form: AnswerForm) -> bool:
    """Whether the answer's text must hold control tokens to be read."""
    marks: list[str] = []
    if form.family is not None:
        marks += form.family.markers
    if form.thinking is not None and form.thinking.separates:
        marks += (form.thinking.style.opener, form.thinking.style.closer)
    return bool(_control_tokens(client, marks))


def _control_tokens(client: EngineClient, marks: Iterable[str]) -> dict[str, int]:
    """Those of marks that are control tokens of the model, and their ids."""
    tokenizer = client.tokenizer
    ids = {mark: tokenizer.backend.token_to_id(mark) for mark in marks}
    return {mark: i for mark, i in ids.items() if i is not None and i in tokenizer.special_ids}


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
