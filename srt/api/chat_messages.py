"""Chat messages as clients send them: roles and content are checked, the rest is the template's."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import FailFast, Field, WithJsonSchema
from typing_extensions import TypeAliasType

from ..errors import BadRequest
from .request_body import Body
from .sampling_fields import AnyValue

MAX_MESSAGES = 8192
MAX_PARTS = 8192  # of one message's content
MAX_TOOL_CALLS = 1024  # of one message

_PART = {
    "type": "object",
    "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
    "required": ["type", "text"],
}
Content = Annotated[
    Any,
    WithJsonSchema(
        {"anyOf": [{"type": "string"}, {"type": "array", "items": _PART}, {"type": "null"}]}
    ),
]


class ChatMessage(Body):
    """One message; content is a string or a list of text parts. Only an assistant may omit it."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content = None
    name: str | None = None
    tool_calls: Annotated[
        list[dict[str, AnyValue]] | None, FailFast(), Field(max_length=MAX_TOOL_CALLS)
    ] = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None


# Named, because a plain annotation with FailFast cannot be part of a union.
Messages = TypeAliasType(
    "Messages",
    Annotated[list[ChatMessage], FailFast(), Field(min_length=1, max_length=MAX_MESSAGES)],
)


def template_messages(messages: list[ChatMessage]) -> list[dict[str, Any]]:
    """Return messages as ChatTemplate.render takes them, without the fields nobody set.

    Raises BadRequest for a message without content that needs some. The calls in them must have
    been checked (chat_history.py).
    """
    plain = []
    for index, message in enumerate(messages):
        if message.content is None and message.role != "assistant":
            param = f"messages.{index}.content"
            raise BadRequest(
                f"{param} is missing; a {message.role} message needs text", param=param
            )
        if isinstance(message.content, list) and len(message.content) > MAX_PARTS:
            param = f"messages.{index}.content"
            raise BadRequest(
                f"{param} has {len(message.content)} parts; at most {MAX_PARTS} are taken",
                param=param,
            )
        dumped = message.model_dump(exclude_none=True)
        for call in dumped.get("tool_calls", ()):
            if not call["function"]["arguments"].strip():
                call["function"]["arguments"] = "{}"
        plain.append(dumped)
    return plain
