"""Calls and their results in the messages of a conversation: what was called must fit together."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from ..errors import BadRequest
from .chat_messages import ChatMessage


def check_history(messages: Sequence[ChatMessage]) -> None:
    """Raise BadRequest for calls that are malformed and for results of calls nobody made."""
    called: set[str] = set()
    for index, message in enumerate(messages):
        path = f"messages.{index}"
        if message.tool_calls is not None:
            if message.role != "assistant":
                raise BadRequest(
                    f"{path}.tool_calls stands in a message of the {message.role}; only an "
                    "assistant calls",
                    param=f"{path}.tool_calls",
                )
            for place, call in enumerate(message.tool_calls):
                called.add(_checked_call(call, f"{path}.tool_calls.{place}"))
        if message.role == "tool":
            _check_result(message, called, f"{path}.tool_call_id")


def _check_result(message: ChatMessage, called: set[str], path: str) -> None:
    call_id = message.tool_call_id
    if call_id is None:
        raise BadRequest(f"{path} is missing; a tool message answers a call", param=path)
    if call_id not in called:
        raise BadRequest(
            f"{path} is {call_id[:80]!r}, which no earlier assistant message calls", param=path
        )


def _checked_call(call: dict[str, Any], path: str) -> str:
    """Check one call; return its id."""
    call_id = call.get("id")
    if not isinstance(call_id, str) or not call_id:
        raise BadRequest(f"{path}.id is missing; it must be a string", param=f"{path}.id")
    if call.get("type", "function") != "function":
        raise BadRequest(
            f"{path}.type is {str(call['type'])[:80]!r}; it must be 'function'",
            param=f"{path}.type",
        )
    function = call.get("function")
    path = f"{path}.function"
    if not isinstance(function, dict):
        raise BadRequest(f"{path} must be an object with name and arguments", param=path)
    if not isinstance(function.get("name"), str) or not function["name"]:
        raise BadRequest(f"{path}.name is missing; it must be a string", param=f"{path}.name")
    _check_arguments(function.get("arguments"), f"{path}.arguments")
    return call_id


def _check_arguments(arguments: Any, path: str) -> None:
    if not isinstance(arguments, str):
        raise BadRequest(f"{path} must be a string, the JSON text of an object", param=path)
    if not arguments.strip():  # some clients write a call without arguments so
        return
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"{path} is not JSON: {error}", param=path) from None
    if not isinstance(value, dict):
        raise BadRequest(
            f"{path} is the JSON text of a {type(value).__name__}; it must be that of an object",
            param=path,
        )
