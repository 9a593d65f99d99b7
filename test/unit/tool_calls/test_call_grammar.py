"""The grammars of tool calls, compiled, and read back by the family's own parser."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.byte_vocabulary import MARK_ID, byte_vocabulary, takes_text

from runtime.grammars.compile import compile_grammar
from runtime.grammars.matcher import Grammar
from runtime.grammars.prepare import prepare
from runtime.grammars.spec import GrammarKind, GrammarSpec, JsonWhitespace
from runtime.srt.errors import BadRequest
from runtime.srt.tool_calls.call_grammar import tool_grammar
from runtime.srt.tool_calls.families import (
    HERMES,
    LLAMA3,
    MISTRAL,
    PYTHONIC,
    SMOLLM2,
    ToolFamily,
)
from runtime.srt.tool_calls.pieces import parse_answer
from runtime.srt.tool_calls.tool import ChoiceMode, Tool, ToolUse

FAMILIES = [HERMES, LLAMA3, MISTRAL, PYTHONIC, SMOLLM2]
COMPACT = JsonWhitespace.COMPACT
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
GOOD, BAD = '{"city":"x"}', '{"town":"x"}'
VOCABULARY = byte_vocabulary()


def tool(name: str, *, strict: bool = False) -> Tool:
    return Tool(name, json.dumps(SCHEMA), {"function": {"name": name}}, strict=strict)


def use_of(mode: ChoiceMode = ChoiceMode.AUTO, **fields: Any) -> ToolUse:
    return ToolUse((tool("f", strict=fields.pop("strict", False)), tool("g")), mode, **fields)


def spec_of(use: ToolUse, family: ToolFamily, **fields: Any) -> GrammarSpec | None:
    return tool_grammar(use, family, **{"special_ids": {}, "whitespace": COMPACT, **fields})


def compiled(use: ToolUse, family: ToolFamily, **fields: Any) -> Grammar:
    spec = spec_of(use, family, **fields)
    assert spec is not None
    return compile_grammar(prepare(spec), VOCABULARY)


def written(family: ToolFamily, *calls: tuple[str, str]) -> str:
    layout = family.layout
    texts = [
        f"{layout.before_name}{json.dumps(name)}{layout.before_arguments}{arguments}"
        f"{layout.after_call}"
        for name, arguments in calls
    ]
    return layout.opener + layout.separator.join(texts) + layout.closer


@pytest.mark.parametrize("family", FAMILIES, ids=lambda one: one.name)
def test_required_calls_are_forced_and_satisfy_the_schema(family: ToolFamily) -> None:
    grammar = compiled(use_of(ChoiceMode.REQUIRED), family)

    assert takes_text(grammar, written(family, ("f", GOOD)))
    assert takes_text(grammar, written(family, ("g", GOOD), ("f", GOOD)))
    for text in ("", "hi", written(family, ("f", BAD)), written(family, ("other", GOOD))):
        assert not takes_text(grammar, text)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda one: one.name)
@pytest.mark.parametrize(
    "use", [use_of(ChoiceMode.NAMED, named="f"), use_of(ChoiceMode.REQUIRED, parallel=False)]
)
def test_one_call_is_one_call(family: ToolFamily, use: ToolUse) -> None:
    grammar = compiled(use, family)

    assert takes_text(grammar, written(family, ("f", GOOD)))
    assert not takes_text(grammar, written(family, ("f", GOOD), ("f", GOOD)))
    assert takes_text(grammar, written(family, ("g", GOOD))) is (use.named is None)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda one: one.name)
def test_strict_tools_leave_text_free_and_hold_calls_to_the_schema(family: ToolFamily) -> None:
    grammar = compiled(use_of(strict=True), family)

    assert takes_text(grammar, "")
    assert takes_text(grammar, "a < b, {x}, [y]\n")
    assert takes_text(grammar, written(family, ("f", GOOD)))
    assert takes_text(grammar, written(family, ("g", '{"any":[1]}')))
    assert not takes_text(grammar, written(family, ("f", BAD)))


@pytest.mark.parametrize("family", FAMILIES, ids=lambda one: one.name)
def test_no_free_text_is_read_as_a_call_that_the_grammar_has_not_seen(family: ToolFamily) -> None:
    grammar = compiled(use_of(strict=True), family)
    bad = written(family, ("f", BAD))
    texts = [bad, f" \n{bad}", f"hi {bad}", bad.replace(": ", ":"), f"<|python_tag|>{bad}"]

    for text in texts:
        if takes_text(grammar, text):
            assert parse_answer(family.parser({"f", "g"}, has_grammar=True), text).calls == []


@pytest.mark.parametrize("family", FAMILIES, ids=lambda one: one.name)
def test_what_the_grammar_writes_the_parser_reads(family: ToolFamily) -> None:
    text = written(family, ("f", GOOD), ("g", GOOD))

    answer = parse_answer(family.parser({"f", "g"}, has_grammar=True), text)

    assert [(one.name, one.arguments) for one in answer.calls] == [("f", GOOD), ("g", GOOD)]
    assert answer.content == ""


@pytest.mark.parametrize("family", [HERMES, MISTRAL], ids=lambda one: one.name)
@pytest.mark.parametrize("use", [use_of(ChoiceMode.REQUIRED), use_of(strict=True)])
def test_a_marker_that_is_a_control_token_is_written_as_one(
    family: ToolFamily, use: ToolUse
) -> None:
    marker = family.markers[0]
    grammar = compiled(use, family, special_ids={marker: MARK_ID})
    good, bad = (written(family, ("f", one)).replace(marker, "<|mark|>") for one in (GOOD, BAD))

    assert takes_text(grammar, good)
    assert not takes_text(grammar, bad)
    assert takes_text(grammar, f"text {good}") is not use.is_forced


def test_free_tools_in_parallel_need_no_grammar() -> None:
    assert spec_of(use_of(), HERMES) is None
    assert spec_of(use_of(ChoiceMode.NONE), HERMES) is None


@pytest.mark.parametrize("family", [HERMES, SMOLLM2, MISTRAL], ids=lambda one: one.name)
def test_an_answer_format_and_tools_leave_both_open(family: ToolFamily) -> None:
    answer = GrammarSpec(GrammarKind.JSON_SCHEMA, '{"type":"integer"}', COMPACT)
    grammar = compiled(use_of(), family, answer=answer)

    assert takes_text(grammar, "12")
    assert takes_text(grammar, written(family, ("f", BAD)))  # not strict
    assert not takes_text(grammar, "text")


@pytest.mark.parametrize(
    ("use", "family", "kind", "param"),
    [
        (use_of(ChoiceMode.REQUIRED), HERMES, GrammarKind.JSON_OBJECT, "tool_choice"),
        (use_of(), HERMES, GrammarKind.REGEX, "tools"),
        (use_of(), LLAMA3, GrammarKind.JSON_OBJECT, "response_format"),
    ],
)
def test_what_cannot_be_combined_is_refused(
    use: ToolUse, family: ToolFamily, kind: GrammarKind, param: str
) -> None:
    with pytest.raises(BadRequest) as caught:
        spec_of(use, family, answer=GrammarSpec(kind, "a"))

    assert caught.value.param == param


def test_with_choice_none_the_answer_keeps_its_own_grammar() -> None:
    answer = GrammarSpec(GrammarKind.REGEX, "a+")

    assert spec_of(use_of(ChoiceMode.NONE), HERMES, answer=answer) is answer


def test_a_schema_that_cannot_be_enforced_is_named_by_its_tool() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "nope"}}}
    tools = (tool("f"), Tool("g", json.dumps(schema), {}))
    spec = spec_of(ToolUse(tools, ChoiceMode.REQUIRED), HERMES)
    assert spec is not None

    with pytest.raises(ValueError, match=r"tools\.1\.function\.parameters/properties/a"):
        prepare(spec)
