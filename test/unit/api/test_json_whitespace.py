"""json_whitespace: a request says for itself where its JSON may have whitespace."""

from __future__ import annotations

from typing import Any

import pytest
from support.tool_server import ToolServer

from runtime.grammars.spec import JsonWhitespace
from runtime.srt.errors import ConfigError

SCHEMA = {"type": "object"}
TOOL = {"type": "function", "function": {"name": "f", "parameters": SCHEMA}}
CALLS = {"tools": [TOOL], "tool_choice": "required"}


def _native(fields: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    return "/generate", {"text": "hi", "sampling_params": {"json_schema": SCHEMA, **fields}}


def _completion(fields: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}
    return "/v1/completions", {"prompt": "hi", "response_format": form, **fields}


def _chat(fields: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    messages = [{"role": "user", "content": "hi"}]
    form = {"type": "json_object"}
    return "/v1/chat/completions", {"messages": messages, "response_format": form, **fields}


def _tools(fields: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    messages = [{"role": "user", "content": "hi"}]
    return "/v1/chat/completions", {"messages": messages, **CALLS, **fields}


ROUTES = [_native, _completion, _chat, _tools]


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("policy", ["compact", "unbounded", None])
def test_a_request_may_choose_and_else_the_server_does(route: Any, policy: str | None) -> None:
    server = ToolServer(json_whitespace="spaced")

    reply = server.post(*route({"json_whitespace": policy}))

    assert reply.status_code == 200, reply.text
    ((spec, _),) = server.grammars.checked
    assert spec.whitespace is JsonWhitespace(policy or "spaced")


@pytest.mark.parametrize("route", ROUTES)
def test_another_value_is_refused_with_those_that_there_are(route: Any) -> None:
    reply = ToolServer().post(*route({"json_whitespace": "none"}))

    error = reply.json()["error"]
    assert reply.status_code == 400
    assert error["param"] == "json_whitespace"
    assert "'none'; it must be one of compact, spaced, bounded, unbounded" in error["message"]


def test_it_is_no_default_of_sampling() -> None:
    with pytest.raises(ConfigError, match="a flag of its own, --json-whitespace"):
        ToolServer(preferred_sampling_params='{"json_whitespace": "compact"}')
