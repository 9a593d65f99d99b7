"""The tool fields of a chat body, checked: tools, tool_choice, parallel_tool_calls."""

from __future__ import annotations

import json
import re
from typing import Any

from ..errors import BadRequest, did_you_mean
from ..tool_calls.tool import ChoiceMode, Tool, ToolUse
from .unknown_fields import refuse_lost_tool_fields

MAX_TOOLS = 128
MAX_NAME_CHARS = 64

_NAME = re.compile(rf"[A-Za-z0-9_.\-]{{1,{MAX_NAME_CHARS}}}", re.ASCII)
_NO_PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {},
    "additionalProperties": False,
}
_MODES = {one.value: one for one in (ChoiceMode.AUTO, ChoiceMode.NONE, ChoiceMode.REQUIRED)}


def parse_tool_use(tools: Any, tool_choice: Any, parallel: bool | None) -> ToolUse | None:
    """Return what the body says about tools; None if it offers none. Raises BadRequest."""
    parsed = _tools(tools)
    mode, named = _choice(tool_choice)
    if not parsed:
        if mode in (ChoiceMode.REQUIRED, ChoiceMode.NAMED):
            raise BadRequest(
                "tool_choice asks for a call, but tools is missing or empty", param="tool_choice"
            )
        return None
    names = [one.name for one in parsed]
    if named is not None and named not in names:
        raise BadRequest(
            f"tool_choice names the function {named!r}, which is not among the tools"
            f"{did_you_mean(named, names)}",
            param="tool_choice.function.name",
        )
    return ToolUse(parsed, mode, named, parallel is not False)


def _tools(value: Any) -> tuple[Tool, ...]:
    if value is None:
        return ()
    if not isinstance(value, list):
        raise BadRequest("tools must be a list of tools", param="tools")
    if len(value) > MAX_TOOLS:
        raise BadRequest(
            f"tools has {len(value)} tools; at most {MAX_TOOLS} are taken", param="tools"
        )
    tools: list[Tool] = []
    for index, one in enumerate(value):
        tool = _tool(one, f"tools.{index}")
        if any(tool.name == other.name for other in tools):
            path = f"tools.{index}.function.name"
            raise BadRequest(f"{path} is {tool.name!r}, which an earlier tool has", param=path)
        tools.append(tool)
    return tuple(tools)


def _tool(value: Any, path: str) -> Tool:
    if not isinstance(value, dict):
        raise BadRequest(f"{path} must be an object", param=path)
    if value.get("type") != "function":
        raise BadRequest(
            f"{path}.type is {_shown(value.get('type'))}; only tools of the type 'function' are "
            "offered",
            param=f"{path}.type",
        )
    path = f"{path}.function"
    function = value.get("function")
    if not isinstance(function, dict):
        raise BadRequest(f"{path} must be an object with a name", param=path)
    refuse_lost_tool_fields(function, path)
    description, strict = function.get("description"), function.get("strict")
    if description is not None and not isinstance(description, str):
        raise BadRequest(f"{path}.description must be a string", param=f"{path}.description")
    if strict is not None and not isinstance(strict, bool):
        raise BadRequest(f"{path}.strict must be a boolean", param=f"{path}.strict")
    return Tool(
        name=_name(function.get("name"), f"{path}.name"),
        schema_text=_schema_text(function.get("parameters"), f"{path}.parameters"),
        wire=value,
        description=description,
        strict=strict is True,
    )


def _name(value: Any, path: str) -> str:
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise BadRequest(
            f"{path} is {_shown(value)}; it must be 1 to {MAX_NAME_CHARS} letters, digits, "
            "'_', '-' or '.'",
            param=path,
        )
    return value


def _schema_text(value: Any, path: str) -> str:
    if value is None:
        value = _NO_PARAMETERS
    if not isinstance(value, dict):
        raise BadRequest(f"{path} must be a JSON schema, an object", param=path)
    if value.get("type", "object") != "object":
        raise BadRequest(
            f"{path}.type is {_shown(value['type'])}; a function's arguments are an object",
            param=f"{path}.type",
        )
    # The arguments are an object also where the schema leaves that open.
    schema = value if "type" in value else {"type": "object", **value}
    try:
        text = json.dumps(schema, ensure_ascii=False, allow_nan=False)
        text.encode()
    except (ValueError, RecursionError):
        raise BadRequest(
            f"{path} holds half a surrogate pair or a number beyond the range of a double, or is "
            "nested too deeply",
            param=path,
        ) from None
    return text


def _choice(value: Any) -> tuple[ChoiceMode, str | None]:
    """Return the mode, and for ChoiceMode.NAMED the name."""
    if value is None:
        return ChoiceMode.AUTO, None
    if isinstance(value, str):
        if value not in _MODES:
            raise BadRequest(
                f"tool_choice is {_shown(value)}; it must be one of {', '.join(_MODES)}, or name "
                "a function",
                param="tool_choice",
            )
        return _MODES[value], None
    if not isinstance(value, dict):
        raise BadRequest("tool_choice must be a string or an object", param="tool_choice")
    if value.get("type") != "function":
        raise BadRequest(
            f"tool_choice.type is {_shown(value.get('type'))}; it must be 'function'",
            param="tool_choice.type",
        )
    function = value.get("function")
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str):
        raise BadRequest("tool_choice.function.name is missing", param="tool_choice.function.name")
    return ChoiceMode.NAMED, name


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:80] + "..."
