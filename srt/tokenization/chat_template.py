"""Chat templates: messages to a prompt, in a sandbox that knows what templates expect.

The environment offers what transformers offers to the same templates: trimmed blocks, loop
controls, tojson that keeps non-ASCII text, raise_exception, strftime_now and the generation tag.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ..errors import BadRequest, ModelLoadError

# Marks where the open last message ends. Private-use characters: no prompt holds them by accident.
# The space shows whether the template trims the message.
_OPEN_END = "\ue0f0\ue0f1\ue0f2"
_LOOPS_OVER_CONTENT = re.compile(
    r"\bfor\s+\w+\s+in\s+(?:\w+\.content\b|\w+\[\s*['\"]content['\"]\s*\]|content\b)"
)


# What a template's own faults raise while it renders.
_FAILURES = (
    jinja2.TemplateError,
    TypeError,
    ValueError,
    KeyError,
    AttributeError,
    ArithmeticError,
    RecursionError,
)


class TemplateFailed(BadRequest):
    """The template is at fault, or not made for such messages; it did not refuse them itself."""


class ChatTemplate:
    """A compiled template; rendering is safe from several threads at once."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        """special_tokens: bos_token, eos_token, ... for the template's use.

        Raises ModelLoadError if source is not a template.
        """
        self.source = source
        self._special_tokens = dict(special_tokens)
        self._knows_developer = "developer" in source
        self._loops_over_content = _LOOPS_OVER_CONTENT.search(source) is not None
        self._tests_for_string = "is string" in source
        try:
            self._template = _environment().from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise ModelLoadError(
                f"the chat template does not compile: {error.message} (line {error.lineno})"
            ) from None
        except RecursionError:
            raise ModelLoadError("the chat template is nested too deeply") from None

    def render(
        self,
        messages: list[dict[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: list[dict[str, Any]] | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt for messages.

        continue_final_message leaves the last message open for the model to go on with, and adds no
        generation prompt. extra: further variables of the template (chat_template_kwargs); they may
        override special tokens, not the arguments above. Raises BadRequest naming the cause.
        """
        prepared = [self._prepare(message, index) for index, message in enumerate(messages)]
        if continue_final_message:
            _mark_open_end(prepared)
        variables = {
            **self._special_tokens,
            "documents": None,
            **(extra or {}),
            "messages": prepared,
            "tools": tools,
            "add_generation_prompt": add_generation_prompt and not continue_final_message,
        }
        try:
            prompt = self._template.render(variables)
        except _Refusal as error:
            raise BadRequest(
                f"the chat template refuses the messages: {error}", param="messages"
            ) from None
        except _FAILURES as error:
            raise TemplateFailed(
                f"the chat template fails on the messages: {type(error).__name__}: {error}",
                param="messages",
            ) from None
        return _cut_open_end(prompt) if continue_final_message else prompt

    def _prepare(self, message: dict[str, Any], index: int) -> dict[str, Any]:
        where = f"messages[{index}]"
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise BadRequest(f"{where} must be an object with a string `role`", param="messages")
        prepared = {name: value for name, value in message.items() if value is not None}
        if prepared["role"] == "developer" and not self._knows_developer:
            prepared["role"] = "system"
        prepared["content"] = self._prepare_content(message.get("content"), where)
        if isinstance(message.get("tool_calls"), list):
            prepared["tool_calls"] = [_parse_arguments(call) for call in message["tool_calls"]]
        return prepared

    def _prepare_content(self, content: Any, where: str) -> str | list[dict[str, Any]]:
        if content is None:
            return ""
        if isinstance(content, str):
            if self._loops_over_content and not self._tests_for_string:
                return [{"type": "text", "text": content}]
            return content
        if not isinstance(content, list):
            raise BadRequest(
                f"{where}.content is a {type(content).__name__}; "
                "it must be a string or a list of parts",
                param="messages",
            )
        texts = [_part_text(part, f"{where}.content[{i}]") for i, part in enumerate(content)]
        if self._loops_over_content:
            return [{"type": "text", "text": text} for text in texts]
        return "".join(texts)


def _part_text(part: Any, where: str) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type") if isinstance(part, dict) else None
    if kind not in ("text", "input_text", "output_text"):
        raise BadRequest(
            f"{where} has type {kind!r}; this model takes parts of type 'text' only",
            param="messages",
        )
    if not isinstance(part.get("text"), str):
        raise BadRequest(f"{where}.text must be a string", param="messages")
    text: str = part["text"]
    return text


def _parse_arguments(call: Any) -> Any:
    """OpenAI sends a call's arguments as JSON text; templates want the object."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = json.loads(function["arguments"])
    except ValueError:
        return call
    return {**call, "function": {**function, "arguments": arguments}}


def _mark_open_end(prepared: list[dict[str, Any]]) -> None:
    if not prepared:
        raise BadRequest(
            "continue_final_message is set, but there is no message", param="continue_final_message"
        )
    last = prepared[-1]
    if isinstance(last["content"], str):
        last["content"] += _OPEN_END + " "
    elif last["content"]:
        last["content"][-1]["text"] += _OPEN_END + " "
    else:
        last["content"] = [{"type": "text", "text": _OPEN_END + " "}]


def _cut_open_end(prompt: str) -> str:
    place = prompt.rfind(_OPEN_END)
    if place < 0:
        raise BadRequest(
            "continue_final_message is set, but the chat template leaves the last message out",
            param="continue_final_message",
        )
    trimmed = not prompt.startswith(" ", place + len(_OPEN_END))
    return prompt[:place].rstrip() if trimmed else prompt[:place]


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_GenerationTag, "jinja2.ext.loopcontrols"],
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


class _GenerationTag(Extension):
    """The generation tag marks the assistant's text for training; here only its body counts."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes HTML characters, which would change the prompt.
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


class _Refusal(jinja2.TemplateError):
    """raise_exception was called."""


def _raise_exception(message: object) -> NoReturn:
    raise _Refusal(str(message))


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)
