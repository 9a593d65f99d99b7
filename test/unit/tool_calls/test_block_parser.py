"""Calls as JSON objects in blocks: the hermes, llama3, mistral and smollm2 forms."""

from __future__ import annotations

import json

import pytest

from runtime.srt.tool_calls.families import HERMES, LLAMA3, MISTRAL, SMOLLM2, ToolFamily
from runtime.srt.tool_calls.pieces import ParsedAnswer, parse_answer

NAMES = frozenset({"f", "g"})


def parse(family: ToolFamily, text: str, *, was_cut: bool = False) -> ParsedAnswer:
    return parse_answer(family.parser(NAMES, has_grammar=False), text, was_cut)


def calls(answer: ParsedAnswer) -> list[tuple[str, object]]:
    return [(one.name, json.loads(one.arguments)) for one in answer.calls]


@pytest.mark.parametrize(
    ("family", "text"),
    [
        (
            HERMES,
            '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>\n'
            '<tool_call>\n{"name": "g", "arguments": {"b": "x"}}\n</tool_call>',
        ),
        (HERMES, '<tool_call>{"arguments":{"a":1},"name":"f"}\n{"name":"g","arguments":{"b":"x"}}'),
        (
            SMOLLM2,
            '<tool_call>[{"name": "f", "arguments": {"a": 1}}, '
            '{"name": "g", "arguments": {"b": "x"}}]</tool_call>',
        ),
        (
            LLAMA3,
            '{"name": "f", "parameters": {"a": 1}}; {"name": "g", "parameters": {"b": "x"}}',
        ),
        (
            LLAMA3,
            '<|python_tag|>{"type": "function", "name": "f", "parameters": {"a": 1}};'
            '{"name": "g", "parameters": {"b": "x"}}',
        ),
        (
            MISTRAL,
            '[TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}}, '
            '{"name": "g", "arguments": {"b": "x"}, "id": "123456789"}]',
        ),
        (MISTRAL, '[TOOL_CALLS]f[ARGS]{"a": 1}[TOOL_CALLS]g{"b": "x"}'),
    ],
)
def test_two_calls_are_read_and_leave_no_content(family: ToolFamily, text: str) -> None:
    answer = parse(family, text)

    assert calls(answer) == [("f", {"a": 1}), ("g", {"b": "x"})]
    assert answer.content == ""


def test_text_around_a_call_is_content_without_the_whitespace_between() -> None:
    answer = parse(
        HERMES, ' Look: \n\n<tool_call>{"name": "f", "arguments": {}}</tool_call>\n done.\n'
    )

    assert answer.content == " Look:done.\n"
    assert calls(answer) == [("f", {})]


@pytest.mark.parametrize(
    ("family", "text"),
    [
        (HERMES, "no call at all, a < b, <tool_ call>\n"),
        (HERMES, "<tool_call>not json</tool_call>"),
        (HERMES, 'see <tool_call>{"name": "unknown", "arguments": {}}</tool_call>'),
        (HERMES, '<tool_call>{"name": "f", "arguments": 5}</tool_call>'),
        (HERMES, '<tool_call>{"arguments": {"a": 1}}</tool_call>'),
        (HERMES, "<tool_call>"),
        (LLAMA3, '{"a": 1}'),
        (LLAMA3, '{"name": "f", "size": 3}'),
        (LLAMA3, 'Use {"name": "f", "parameters": {}}'),
        (LLAMA3, '[{"x": 1}]'),
        (MISTRAL, "[TOOL_CALLS]I will {not}"),
        (MISTRAL, "[1, 2]"),
    ],
)
def test_what_is_no_call_stays_content(family: ToolFamily, text: str) -> None:
    answer = parse(family, text)

    assert answer == ParsedAnswer(text, [])


def test_a_name_without_arguments_is_a_call_with_none() -> None:
    assert calls(parse(HERMES, '<tool_call>{"name": "f"}</tool_call>')) == [("f", {})]


def test_arguments_written_as_a_json_string_are_unwrapped() -> None:
    text = json.dumps({"name": "f", "arguments": json.dumps({"a": "é"})})

    assert calls(parse(HERMES, f"<tool_call>{text}</tool_call>")) == [("f", {"a": "é"})]


def test_a_line_break_inside_a_string_argument_is_escaped() -> None:
    answer = parse(HERMES, '<tool_call>{"name": "f", "arguments": {"a": "x\ny"}}</tool_call>')

    assert calls(answer) == [("f", {"a": "x\ny"})]


@pytest.mark.parametrize("broken", ["{'a': 1}", '{"a": 01}', '{"a": tru3}', '{"a" 1}', '{"a": 1,}'])
def test_arguments_that_break_off_are_the_beginning_of_json_and_hide_the_rest(broken: str) -> None:
    parser = HERMES.parser(NAMES, has_grammar=False)

    answer = parse_answer(
        parser, f'<tool_call>{{"name": "f", "arguments": {broken}}}</tool_call> and more'
    )

    assert parser.has_incomplete_call
    assert answer.content == "and more"
    assert broken.startswith(answer.calls[0].arguments)
    assert answer.calls[0].arguments != broken


def test_a_cut_call_keeps_what_there_is_of_its_arguments() -> None:
    parser = HERMES.parser(NAMES, has_grammar=False)

    answer = parse_answer(parser, 'ok <tool_call>{"name": "f", "arguments": {"a": "xy', True)

    assert answer.content == "ok"
    assert answer.calls[0].arguments == '{"a": "xy'
    assert parser.has_incomplete_call


def test_a_call_cut_before_its_name_is_dropped_not_shown() -> None:
    assert parse(HERMES, 'ok <tool_call>\n{"na', was_cut=True) == ParsedAnswer("ok", [])


def test_a_call_that_the_model_gave_up_is_content() -> None:
    text = 'ok <tool_call>\n{"na'

    assert parse(HERMES, text) == ParsedAnswer(text, [])


def test_nesting_beyond_the_limit_is_no_call() -> None:
    deep = '{"a":' * 200 + "1" + "}" * 200
    parser = HERMES.parser(NAMES, has_grammar=False)

    parse_answer(parser, f'<tool_call>{{"name": "f", "arguments": {deep}}}</tool_call>')

    assert parser.has_incomplete_call


def test_ids_are_fresh_and_in_the_form_that_the_family_takes() -> None:
    assert HERMES.new_call_id() != HERMES.new_call_id()
    assert HERMES.new_call_id().startswith("call_")
    assert len(MISTRAL.new_call_id()) == 9 and MISTRAL.new_call_id().isalnum()
