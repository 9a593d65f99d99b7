"""Thinking in /v1/chat/completions over a fake engine."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.tool_server import CALL, ToolServer, tool

from runtime.srt.tokenization.chat_template import ChatTemplate

TEXT = "<think>\nlet me see\n</think>\n\nIt is 4."


def choice_of(server: ToolServer, **fields: Any) -> Any:
    return server.chat(tools=None, **fields)


def test_thinking_is_told_apart_with_a_parser_only() -> None:
    with_parser = choice_of(ToolServer(TEXT, reasoning_parser="qwen3"))
    without = choice_of(ToolServer(TEXT))

    assert with_parser["message"]["reasoning_content"] == "let me see"
    assert with_parser["message"]["content"] == "It is 4."
    assert without["message"]["content"] == TEXT
    assert "reasoning_content" not in without["message"]


def test_an_answer_without_thinking_has_none() -> None:
    message = choice_of(ToolServer("It is 4.", reasoning_parser="qwen3"))["message"]

    assert message["reasoning_content"] is None
    assert message["content"] == "It is 4."


def test_a_model_that_always_thinks_need_not_open_its_thinking() -> None:
    server = ToolServer("let me see</think>It is 4.", reasoning_parser="deepseek-r1")

    message = choice_of(server)["message"]

    assert (message["reasoning_content"], message["content"]) == ("let me see", "It is 4.")


def test_thinking_that_was_cut_is_all_there_is() -> None:
    server = ToolServer("<think>let me", ends="length", reasoning_parser="qwen3")

    choice = choice_of(server)

    assert choice["message"]["reasoning_content"] == "let me"
    assert choice["message"]["content"] is None
    assert choice["finish_reason"] == "length"


def test_separate_reasoning_false_leaves_the_text_as_it_is() -> None:
    server = ToolServer(TEXT, reasoning_parser="qwen3")

    message = choice_of(server, separate_reasoning=False)["message"]

    assert message["content"] == TEXT
    assert "reasoning_content" not in message


def test_turning_thinking_off_makes_everything_content() -> None:
    server = ToolServer("It is 4.", reasoning_parser="deepseek-r1")

    message = choice_of(server, chat_template_kwargs={"enable_thinking": False})["message"]

    assert message["content"] == "It is 4."


EFFORT_TEMPLATE = "effort {{ reasoning_effort }}, thinks {{ enable_thinking | default(true) }}"


@pytest.mark.parametrize(
    ("fields", "prompt"),
    [
        ({}, "effort , thinks True"),
        ({"reasoning_effort": None}, "effort , thinks True"),
        ({"reasoning_effort": "low"}, "effort low, thinks True"),
        ({"reasoning_effort": "none"}, "effort none, thinks False"),
        (
            {"reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": True}},
            "effort none, thinks True",
        ),
    ],
)
def test_the_template_is_told_how_much_to_think(fields: dict[str, Any], prompt: str) -> None:
    server = ToolServer("It is 4.")
    server.client.chat_template = ChatTemplate(EFFORT_TEMPLATE, {})

    choice_of(server, **fields)

    assert server.prompt() == prompt


def test_no_effort_makes_everything_content() -> None:
    server = ToolServer("It is 4.", reasoning_parser="deepseek-r1")

    message = choice_of(server, reasoning_effort="none")["message"]

    assert message["content"] == "It is 4."


def deltas(server: ToolServer, **fields: Any) -> list[dict[str, Any]]:
    return [one["delta"] for one in server.stream(**fields)]


def joined(found: list[dict[str, Any]], name: str) -> str:
    return "".join(one.get(name) or "" for one in found)


def test_thinking_streams_before_the_content() -> None:
    found = deltas(ToolServer(TEXT, reasoning_parser="qwen3"), tools=None)

    assert joined(found, "reasoning_content") == "let me see"
    assert joined(found, "content") == "It is 4."
    kinds = [name for one in found for name in one if name != "role" and one[name]]
    assert kinds.index("content") == kinds.count("reasoning_content") > 3


def test_stream_reasoning_false_tells_the_thinking_in_one_piece() -> None:
    server = ToolServer(TEXT, reasoning_parser="qwen3")

    found = deltas(server, tools=None, stream_reasoning=False)

    assert [one["reasoning_content"] for one in found if "reasoning_content" in one] == [
        "let me see"
    ]
    assert joined(found, "content") == "It is 4."


def test_calls_follow_thinking() -> None:
    server = ToolServer(f"<think>{CALL}</think>{CALL}", reasoning_parser="qwen3")

    choice = server.chat()

    assert choice["message"]["reasoning_content"] == CALL
    assert len(choice["message"]["tool_calls"]) == 1
    assert choice["finish_reason"] == "tool_calls"


@pytest.mark.parametrize("name", ["max_thinking_tokens", "thinking_budget"])
def test_a_budget_becomes_a_rule_for_the_thinking(name: str) -> None:
    server = ToolServer(TEXT, reasoning_parser="qwen3")

    choice_of(server, **{name: 7})

    ((spec, _),) = server.grammars.checked
    assert json.loads(spec.text) == {
        "rule": {"opener": "<think>", "closer": "</think>", "is_open": False, "max_tokens": 7},
        "answer": None,
    }


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [tool()], "tool_choice": "required"},
        {"tools": None, "response_format": {"type": "json_object"}},
    ],
)
def test_a_grammar_begins_after_the_thinking(fields: dict[str, Any]) -> None:
    server = ToolServer(TEXT, reasoning_parser="deepseek-r1")

    server.chat(**fields)

    ((spec, _),) = server.grammars.checked
    value = json.loads(spec.text)
    assert value["rule"]["is_open"] is True
    assert value["answer"]["kind"] in ("structural_tag", "json_object")


@pytest.mark.parametrize(
    ("fields", "param", "shown"),
    [
        ({"max_thinking_tokens": -1}, "max_thinking_tokens", "-1"),
        ({"max_thinking_tokens": "x"}, "max_thinking_tokens", "integer"),
        ({"thinking_budget": 1, "max_thinking_tokens": 2}, "max_thinking_tokens", "is 2"),
        ({"separate_reasoning": 1}, "separate_reasoning", "boolean"),
        ({"stream_reasoning": "x"}, "stream_reasoning", "boolean"),
    ],
)
def test_mistakes_in_the_reasoning_fields_are_named(
    fields: dict[str, Any], param: str, shown: str
) -> None:
    reply = ToolServer(reasoning_parser="qwen3").post(
        "/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], **fields}
    )

    assert reply.status_code == 400, reply.text
    assert reply.json()["error"]["param"] == param
    assert shown in reply.json()["error"]["message"]


def test_a_budget_without_a_parser_is_refused_not_ignored() -> None:
    reply = ToolServer().post(
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": "x"}], "thinking_budget": 5},
    )

    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == "thinking_budget"
    assert "--reasoning-parser" in reply.json()["error"]["message"]
