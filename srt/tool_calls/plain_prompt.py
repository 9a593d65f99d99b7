"""Tools for models whose chat template knows none: told in the system message, as plain text.

The tools are listed as JSON with the form of a call; calls and results of earlier turns become text
of the assistant and the user. docs/user-guide.md shows the text.
"""

from __future__ import annotations

import json
from typing import Any

from .families import ToolFamily
from .tool import ChoiceMode, ToolUse

_RESULT_OPENER, _RESULT_CLOSER = "<tool_response>", "</tool_response>"


def with_plain_tools(
    messages: list[dict[str, Any]], use: ToolUse | None, family: ToolFamily
) -> list[dict[str, Any]]:
    """Return messages, as a template takes them, with the tools of use and the calls as text.

    messages are not changed. use None: only the calls and results in the history are written out.
    """
    plain: list[dict[str, Any]] = []
    results: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            results.append(f"{_RESULT_OPENER}\n{_text_of(message)}\n{_RESULT_CLOSER}")
            continue
        _add_results(plain, results)
        plain.append(_with_calls(message, family) if message.get("tool_calls") else message)
    _add_results(plain, results)
    if use is None or not use.callable_tools:
        return plain
    return _with_system_text(plain, tools_text(use, family))


def tools_text(use: ToolUse, family: ToolFamily) -> str:
    """The text that tells a model which tools there are and how to call them."""
    functions = [one.wire["function"] for one in use.callable_tools]
    listed = "\n".join(json.dumps(one, ensure_ascii=False) for one in functions)
    layout = family.layout
    example = (
        f'{layout.opener}{layout.before_name}"function name"{layout.before_arguments}'
        f'{{"argument name": "value"}}{layout.after_call}{layout.closer}'
    )
    several = "" if use.parallel and use.mode is not ChoiceMode.NAMED else " Make one call only."
    when = "Answer with" if use.is_forced else "If a function helps, answer with"
    return (
        "You can call functions. Each line between the tags describes one, with the JSON schema of "
        f"its arguments:\n<tools>\n{listed}\n</tools>\n{when} a call in this form and nothing "
        f"else:\n{example}\n{several}".rstrip()
    )


def _text_of(message: dict[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, list):
        return "".join(part.get("text", "") for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


def _add_results(plain: list[dict[str, Any]], results: list[str]) -> None:
    """Add results, of one turn, as a message of the user: many templates know no other role."""
    if results:
        plain.append({"role": "user", "content": "\n".join(results)})
        results.clear()


def _with_calls(message: dict[str, Any], family: ToolFamily) -> dict[str, Any]:
    layout = family.layout
    calls = [
        f"{layout.before_name}{json.dumps(call['function']['name'])}{layout.before_arguments}"
        f"{call['function']['arguments']}{layout.after_call}"
        for call in message["tool_calls"]
    ]
    text = layout.opener + layout.separator.join(calls) + layout.closer
    content = _text_of(message)
    whole = f"{content}\n{text}" if content else text
    return {**{k: v for k, v in message.items() if k != "tool_calls"}, "content": whole}


def _with_system_text(messages: list[dict[str, Any]], text: str) -> list[dict[str, Any]]:
    if messages and messages[0]["role"] in ("system", "developer"):
        own = _text_of(messages[0])
        whole = f"{own}\n\n{text}" if own else text
        return [{**messages[0], "content": whole}, *messages[1:]]
    return [{"role": "system", "content": text}, *messages]
