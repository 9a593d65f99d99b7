"""Messages of a conversation as expressions; the model's own chat template writes them out."""

from __future__ import annotations

import json

from .errors import ProgramError
from .expressions import Role, ToolResult, as_expression
from .tools import ToolCall


def system(content: object) -> Role:
    """A message of the system; content is text, an expression or a sum of them."""
    return Role("system", as_expression(content))


def user(content: object) -> Role:
    """A message of the user."""
    return Role("user", as_expression(content))


def assistant(content: object) -> Role:
    """A message of the assistant, most often with a gen in it."""
    return Role("assistant", as_expression(content))


def tool_result(call: ToolCall, value: object) -> ToolResult:
    """The message that answers a call of the model; a value that is no text becomes JSON."""
    if isinstance(value, str):
        return ToolResult(call, value)
    try:
        return ToolResult(call, json.dumps(value, ensure_ascii=False))
    except TypeError:
        raise ProgramError(
            f"the result of {call.name} is of type {type(value).__name__}, which JSON does not "
            "have; give text or JSON types"
        ) from None
