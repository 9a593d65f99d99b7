"""What the two OpenAI generation routes have in common: fields, refusals and names."""

from __future__ import annotations

import re
import uuid
from typing import Any

from pydantic import ConfigDict

from runtime.grammars.spec import JsonWhitespace

from ..errors import BadRequest
from .grammar_fields import GRAMMAR_FIELDS, GrammarField, openai_grammar
from .native_body import namespace_of
from .request_body import Body
from .sampling_fields import AnyValue, SamplingFields
from .unavailable import refuse_if_set
from .unknown_fields import refuse_lost_constraints

_OPENAI_NAMES = {
    "max_new_tokens": "max_tokens",
    "min_new_tokens": "min_tokens",
}
_NATIVE_NAME = re.compile(r"\b(" + "|".join(_OPENAI_NAMES) + r")\b")


class StreamOptions(Body):
    """stream_options; continuous_usage_stats has an effect together with include_usage."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class OpenAiFields(SamplingFields):
    """Fields of both routes beyond the sampling ones; user, metadata, store, ... are ignored."""

    model_config = ConfigDict(extra="allow")

    model: str | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    rid: str | None = None
    cache_salt: str | None = None
    extra_key: str | None = None
    priority: int | None = None
    timeout_seconds: float | None = None
    program_id: str | None = None
    branch_id: str | None = None
    response_format: AnyValue = None
    regex: AnyValue = None
    ebnf: AnyValue = None
    json_schema: AnyValue = None
    structural_tag: AnyValue = None
    structured_outputs: AnyValue = None
    guided_json: AnyValue = None
    guided_regex: AnyValue = None
    guided_choice: AnyValue = None
    guided_grammar: AnyValue = None
    choice: AnyValue = None
    lora_path: AnyValue = None
    session_params: AnyValue = None
    custom_logit_processor: AnyValue = None
    return_hidden_states: AnyValue = None
    require_reasoning: AnyValue = None
    max_thinking_tokens: AnyValue = None

    def explicit(self) -> dict[str, Any]:
        """Return what is set, as SamplingParams fields; refuse what is not offered (BadRequest)."""
        refuse_lost_constraints(self.unknown, type(self).model_fields)
        self._refuse_unavailable()
        values = super().explicit()
        if self.max_tokens is not None:
            values["max_new_tokens"] = self.max_tokens
        if self.min_tokens is not None:
            values["min_new_tokens"] = self.min_tokens
        return values

    @property
    def namespace(self) -> str | None:
        """The cache namespace that the request's prefixes live in."""
        return namespace_of(self.cache_salt, self.extra_key)

    def grammar(self, whitespace: JsonWhitespace) -> GrammarField | None:
        """Return the grammar that the output follows; None if it is free. Raises BadRequest.

        whitespace is that of JSON where json_whitespace is not set.
        """
        fields = {name: getattr(self, name) for name in GRAMMAR_FIELDS}
        return openai_grammar(self.whitespace(whitespace), fields)

    @property
    def includes_usage(self) -> bool:
        """Whether the stream ends with a usage chunk."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def has_usage_in_each_chunk(self) -> bool:
        """Whether every chunk carries the usage so far."""
        options = self.stream_options
        return self.includes_usage and options is not None and bool(options.continuous_usage_stats)

    def _refuse_unavailable(self) -> None:
        refuse_if_set("LoRA", lora_path=self.lora_path)
        refuse_if_set("sessions", session_params=self.session_params)
        refuse_if_set("custom code", custom_logit_processor=self.custom_logit_processor)
        refuse_if_set("returning hidden states", return_hidden_states=self.return_hidden_states)
        self._refuse_reasoning()

    def _refuse_reasoning(self) -> None:
        refuse_if_set(
            "reasoning control",
            require_reasoning=self.require_reasoning,
            max_thinking_tokens=self.max_thinking_tokens,
        )


def with_openai_names(error: BadRequest, *, limit_name: str = "max_tokens") -> BadRequest:
    """Return error with fields named as the OpenAI routes call them.

    limit_name is the field that the body gave its limit of new tokens in.
    """
    names = {**_OPENAI_NAMES, "max_new_tokens": limit_name}

    def renamed(text: str) -> str:
        return _NATIVE_NAME.sub(lambda match: names[match[1]], text)

    param = None if error.param is None else renamed(error.param)
    return type(error)(renamed(error.message), param=param, code=error.code)


def new_id(prefix: str) -> str:
    """Return a fresh id such as chatcmpl-1f..."""
    return f"{prefix}-{uuid.uuid4().hex}"
