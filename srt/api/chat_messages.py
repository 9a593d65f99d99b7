"""Chat messages as clients send them: roles and content are checked, the rest is the template's."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, WithJsonSchema

from ..errors import BadRequest
from .request_body import Body
from .sampling_fields import AnyValue

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
    tool_calls: list[dict[str, AnyValue]] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None


Messages = Annotated[list[ChatMessage], Field(min_length=1)]


def template_messages(messages: list[ChatMessage]) -> list[dict[str, Any]]:
    """Return messages as ChatTemplate.render takes them, without the fields nobody set.

    Raises BadRequest for a message without content that needs some.
    """
    plain = []
    for index, message in enumerate(messages):
        if message.content is None and message.role != "assistant":
            param = f"messages.{index}.content"
            raise BadRequest(
                f"{param} is missing; a {message.role} message needs text", param=param
            )
        plain.append(message.model_dump(exclude_none=True))
    return plain
