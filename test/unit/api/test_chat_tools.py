"""Tools of /v1/chat/completions over a fake engine: fields, prompt, grammar, answer, stream."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.tool_server import CALL, HI, SCHEMA, ToolServer, body, tool

from runtime.srt.tokenization.chat_template import ChatTemplate

TOOL_TEMPLATE = (
    "{% for tool in tools or [] %}<tool_call>{{ tool | tojson }};{% endfor %}"
    "{% for m in messages %}{{ m.role }}:{{ m.content }}"
    "{% for c in m.tool_calls or [] %}{{ c.function.name }}({{ c.function.arguments.zeta }})"
    "{% endfor %};{% endfor %}"
)


def named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def test_a_call_is_the_message_and_content_is_null() -> None:
    choice = ToolServer().chat()

    (call,) = choice["message"]["tool_calls"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None
    assert call["id"].startswith("call_") and call["type"] == "function"
    assert call["function"] == {"name": "get", "arguments": '{"zeta": "é", "alpha": 1}'}


def test_text_beside_a_call_is_kept() -> None:
    assert ToolServer(f"Let me see.\n{CALL}").chat()["message"]["content"] == "Let me see."


def test_an_answer_without_a_call_is_an_ordinary_one() -> None:
    choice = ToolServer("just <b>text</b>").chat()

    assert choice["message"]["content"] == "just <b>text</b>"
    assert choice["finish_reason"] == "stop"
    assert "tool_calls" not in choice["message"]


def test_a_stream_tells_id_and_name_first_and_then_the_arguments() -> None:
    calls = CALL.replace("}]", '}, {"name": "get", "arguments": {"zeta": ""}}]')

    choices = ToolServer(f"So: {calls}").stream()

    deltas = [one["delta"] for one in choices]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert "".join(one.get("content") or "" for one in deltas) == "So:"
    told = [call for one in deltas for call in one.get("tool_calls", [])]
    heads = [one for one in told if "id" in one]
    assert [one["index"] for one in heads] == [0, 1]
    assert len({one["id"] for one in heads}) == 2
    assert all(one["function"] == {"name": "get", "arguments": ""} for one in heads)
    assert told[0] is heads[0] and len(told) > 20
    arguments = ["", ""]
    for one in told:
        arguments[one["index"]] += one["function"]["arguments"]
    assert arguments == ['{"zeta": "é", "alpha": 1}', '{"zeta": ""}']
    assert [one["finish_reason"] for one in choices if one["finish_reason"]] == ["tool_calls"]


def test_no_part_of_a_marker_is_streamed_as_content() -> None:
    deltas = [one["delta"] for one in ToolServer(f"a < b {CALL} c").stream()]

    assert [one["content"] for one in deltas if one.get("content")] == [*"a", *[" <"], " b", "c"]


def test_a_call_cut_by_the_length_ends_with_length() -> None:
    text = CALL[: CALL.index("alpha")]

    choice = ToolServer(text, ends="length").chat()
    streamed = ToolServer(text, ends="length").stream()

    assert choice["finish_reason"] == "length"
    assert choice["message"]["tool_calls"][0]["function"]["arguments"] == '{"zeta": "é", "'
    assert choice["message"]["content"] is None
    assert [one["finish_reason"] for one in streamed if one["finish_reason"]] == ["length"]


def test_a_call_that_breaks_off_is_no_reason_to_end_with_tool_calls() -> None:
    choice = ToolServer('<tool_call>[{"name": "get", "arguments": {"zeta": oops}}]').chat()

    assert choice["finish_reason"] == "stop"
    assert choice["message"]["tool_calls"][0]["function"]["arguments"] == '{"zeta": '


def test_several_samples_have_calls_of_their_own() -> None:
    server = ToolServer()
    reply = server.post("/v1/chat/completions", body(n=2)).json()

    ids = [one["message"]["tool_calls"][0]["id"] for one in reply["choices"]]
    assert len(set(ids)) == 2


def test_logprobs_of_a_streamed_call_belong_to_its_tokens() -> None:
    choices = ToolServer().stream(logprobs=True)

    counts = [len(one["logprobs"]["content"]) for one in choices if one["logprobs"]]
    assert sum(counts) == len(CALL.encode()) + 1


def test_a_template_without_tools_gets_them_in_a_system_message() -> None:
    server = ToolServer()
    server.chat(messages=[{"role": "system", "content": "Be brief."}, *HI])

    system, user, _ = server.prompt().split("<|start|>")[1:]
    assert system.startswith("system\nBe brief.\n\n")
    assert json.dumps(tool()["function"]) in system
    assert '<tool_call>[{"name": "function name", "arguments": ' in system
    assert user == "user\nhi<|end|>\n"


def test_a_template_that_knows_tools_gets_them_itself_with_their_key_order() -> None:
    server = ToolServer('<tool_call>{"name": "get", "arguments": {"zeta": "x"}}</tool_call>')
    server.client.chat_template = ChatTemplate(TOOL_TEMPLATE, {})

    choice = server.chat()

    assert server.prompt().startswith(f"<tool_call>{json.dumps(tool())};user:hi;")
    assert choice["finish_reason"] == "tool_calls"


HISTORY = [
    *HI,
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": "c1",
                "type": "function",
                "function": {"name": "get", "arguments": '{"zeta":"q"}'},
            },
            {"id": "c2", "type": "function", "function": {"name": "get", "arguments": ""}},
        ],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "42"},
    {"role": "tool", "tool_call_id": "c2", "content": [{"type": "text", "text": "43"}]},
]


def test_calls_in_the_history_reach_the_template_with_parsed_arguments() -> None:
    server = ToolServer()
    server.client.chat_template = ChatTemplate(TOOL_TEMPLATE, {})

    server.chat(messages=HISTORY)

    assert "assistant:get(q)get();tool:42;tool:43;" in server.prompt()


def test_calls_in_the_history_are_text_for_a_template_without_tools() -> None:
    server = ToolServer()

    server.chat(messages=HISTORY, tools=None)

    calls = '[{"name": "get", "arguments": {"zeta":"q"}}, {"name": "get", "arguments": {}}]'
    results = "<tool_response>\n42\n</tool_response>\n<tool_response>\n43\n</tool_response>"
    assert f"assistant\n<tool_call>{calls}</tool_call><|end|>" in server.prompt()
    assert f"user\n{results}<|end|>" in server.prompt()


def _call(**function: Any) -> dict[str, Any]:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"} | function}
    return {"role": "assistant", "tool_calls": [call]}


@pytest.mark.parametrize(
    ("messages", "param", "shown"),
    [
        ([{"role": "tool", "content": "x"}], "messages.0.tool_call_id", "missing"),
        (
            [_call(), {"role": "tool", "content": "x", "tool_call_id": "d"}],
            "messages.1.tool_call_id",
            "'d'",
        ),
        ([_call(arguments="{a}")], "messages.0.tool_calls.0.function.arguments", "not JSON"),
        ([_call(arguments="[1]")], "messages.0.tool_calls.0.function.arguments", "list"),
        ([_call(arguments={})], "messages.0.tool_calls.0.function.arguments", "string"),
        ([_call(name="")], "messages.0.tool_calls.0.function.name", "missing"),
        (
            [{"role": "assistant", "tool_calls": [{"function": {}}]}],
            "messages.0.tool_calls.0.id",
            "missing",
        ),
        (
            [{"role": "assistant", "tool_calls": [{"id": "c", "type": "x"}]}],
            "messages.0.tool_calls.0.type",
            "'x'",
        ),
        (
            [{"role": "assistant", "tool_calls": [{"id": "c"}]}],
            "messages.0.tool_calls.0.function",
            "object",
        ),
        ([{**_call(), "role": "user", "content": "x"}], "messages.0.tool_calls", "user"),
        ([{"role": "tool", "tool_call_id": "c"}], "messages.0.tool_call_id", "'c'"),
    ],
)
def test_a_malformed_history_is_named(messages: Any, param: str, shown: str) -> None:
    reply = ToolServer().post("/v1/chat/completions", body(messages=[*messages, *HI]))

    assert reply.status_code == 400, reply.text
    assert reply.json()["error"]["param"] == param
    assert shown in reply.json()["error"]["message"]


@pytest.mark.parametrize(
    ("fields", "param", "shown"),
    [
        ({"tools": {}}, "tools", "list"),
        ({"tools": [5]}, "tools.0", "object"),
        ({"tools": [{"type": "web_search"}]}, "tools.0.type", "'web_search'"),
        ({"tools": [{"type": "function"}]}, "tools.0.function", "name"),
        ({"tools": [tool("")]}, "tools.0.function.name", "64"),
        ({"tools": [tool("a b")]}, "tools.0.function.name", "'a b'"),
        ({"tools": [tool("x" * 65)]}, "tools.0.function.name", "64"),
        ({"tools": [tool("a"), tool("a")]}, "tools.1.function.name", "'a'"),
        ({"tools": [tool(f"f{i}") for i in range(129)]}, "tools", "129"),
        ({"tools": [tool(parameters=[])]}, "tools.0.function.parameters", "object"),
        (
            {"tools": [tool(parameters={"type": "string"})]},
            "tools.0.function.parameters.type",
            "'string'",
        ),
        ({"tools": [tool(strict="yes")]}, "tools.0.function.strict", "boolean"),
        ({"tools": [tool(description=5)]}, "tools.0.function.description", "string"),
        ({"tool_choice": "any"}, "tool_choice", "'any'"),
        ({"tool_choice": 5}, "tool_choice", "object"),
        ({"tool_choice": {"type": "tool"}}, "tool_choice.type", "'tool'"),
        ({"tool_choice": {"type": "function"}}, "tool_choice.function.name", "missing"),
        ({"tool_choice": named("got")}, "tool_choice.function.name", "did you mean get?"),
        ({"tool_choice": "required", "tools": []}, "tool_choice", "tools is missing or empty"),
        ({"tool_choice": named("get"), "tools": None}, "tool_choice", "tools is missing"),
        ({"parallel_tool_calls": "no"}, "parallel_tool_calls", "boolean"),
        (
            {"tool_choice": "required", "response_format": {"type": "json_object"}},
            "tool_choice",
            "response_format",
        ),
        ({"regex": "a+"}, "tools", "regex"),
    ],
)
def test_mistakes_in_the_tool_fields_are_named(
    fields: dict[str, Any], param: str, shown: str
) -> None:
    reply = ToolServer().post("/v1/chat/completions", body(**fields))

    assert reply.status_code == 400, reply.text
    assert reply.json()["error"]["param"] == param
    assert shown in reply.json()["error"]["message"]


def test_free_calls_need_no_grammar() -> None:
    server = ToolServer()

    server.chat(tool_choice="auto")

    assert server.grammars.checked == []


@pytest.mark.parametrize(
    "fields",
    [
        {"tool_choice": "required"},
        {"tool_choice": named("get")},
        {"tools": [tool(strict=True)]},
        {"parallel_tool_calls": False},
        {"response_format": {"type": "json_object"}},
    ],
)
def test_a_promise_about_calls_is_kept_by_a_grammar_for_them(fields: dict[str, Any]) -> None:
    server = ToolServer()

    server.chat(**fields)

    ((spec, param),) = server.grammars.checked
    assert server.engine.requests[0].grammar is not None
    assert "<tool_call>" in spec.text
    assert param in ("tools", "response_format")


def test_the_grammar_of_a_forced_call_has_the_schema_in_its_own_key_order() -> None:
    server = ToolServer()

    server.chat(tools=[tool(), tool("other")], tool_choice=named("get"))

    ((spec, _),) = server.grammars.checked
    assert json.dumps(SCHEMA) in spec.text
    assert '\\"get\\"' in spec.text and "other" not in spec.text


def test_with_choice_none_tools_are_neither_told_nor_looked_for() -> None:
    server = ToolServer()

    choice = server.chat(tool_choice="none")

    assert choice["message"]["content"] == CALL
    assert "what get does" not in server.prompt()
    assert server.grammars.checked == []


def test_the_flag_chooses_how_calls_are_read() -> None:
    server = ToolServer("[get(zeta='x')]", tool_call_parser="pythonic")

    (call,) = server.chat()["message"]["tool_calls"]

    assert call["function"]["arguments"] == '{"zeta": "x"}'
