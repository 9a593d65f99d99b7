"""Structural tags, prepared and compiled, over a byte vocabulary."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.byte_vocabulary import byte_vocabulary, takes_text

from runtime.grammars.compile import compile_grammar
from runtime.grammars.matcher import Grammar, GrammarError
from runtime.grammars.prepare import prepare
from runtime.grammars.spec import GrammarKind, GrammarSpec, JsonWhitespace

CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
VOCABULARY = byte_vocabulary()


def compiled(tag: Any) -> Grammar:
    text = tag if isinstance(tag, str) else json.dumps(tag)
    spec = GrammarSpec(GrammarKind.STRUCTURAL_TAG, text, JsonWhitespace.COMPACT)
    return compile_grammar(prepare(spec), VOCABULARY)


def json_of(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": schema}


def tag_of(begin: Any, content: dict[str, Any], end: Any) -> dict[str, Any]:
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def check(tag: Any, legal: list[str], illegal: list[str]) -> None:
    grammar = compiled(tag)
    assert [text for text in legal if not takes_text(grammar, text)] == []
    assert [text for text in illegal if takes_text(grammar, text)] == []


def test_the_older_form_leaves_text_free_until_a_trigger() -> None:
    check(
        {
            "structures": [
                {"begin": "<f=get>", "schema": CITY, "end": "</f>"},
                {"begin": "<f=n>", "schema": {"type": "integer"}, "end": "</f>"},
            ],
            "triggers": ["<f="],
        },
        ["", "any text, <f too", 'a <f=get>{"city":"é"}</f> b <f=n>12</f>', "<f=n>-1</f>\n"],
        ["<f=", "<f=other>", "<f=get>{}</f>", "<f=n>1.5</f>", "x <f=n>1</g>", '<f=get>{"city":"a'],
    )


def test_at_least_one_and_stop_after_first_bound_the_number_of_tags() -> None:
    tags = {"triggers": ["<"], "tags": [tag_of("<a>", {"type": "any_text"}, ["</a>", "</b>"])]}
    both = {**tags, "at_least_one": True, "stop_after_first": True}
    first = {**tags, "at_least_one": True}
    last = {**tags, "stop_after_first": True}

    check(_format("triggered_tags", both), ["<a>x</a>", "<a></b>"], ["", "x<a>y</a>", "<a>x</a>y"])
    check(_format("triggered_tags", first), ["<a>x</a> t <a>y</a>"], ["", "t<a>y</a>"])
    check(_format("triggered_tags", last), ["", "t", "t<a>y</a>"], ["t<a>y</a>u", "<b>"])


def _format(kind: str, fields: dict[str, Any]) -> dict[str, Any]:
    return {"format": {"type": kind, **fields}}


def test_sequences_choices_and_separated_tags_nest() -> None:
    numbers = [tag_of("(", {"type": "regex", "pattern": "[0-9]+/x"}, ")")]
    several = {"tags": numbers, "separator": ", ", "at_least_one": True}
    elements = [
        {"type": "const_string", "value": 'é"['},
        {"type": "or", "elements": [{"type": "tags_with_separator", **several}, json_of(CITY)]},
        {"type": "const_string", "value": "]\n"},
    ]

    check(
        _format("sequence", {"elements": elements}),
        ['é"[(1/x)]\n', 'é"[(1/x), (22/x)]\n', 'é"[{"city":""}]\n'],
        ['é"[]\n', 'é"[(1/x),(2/x)]\n', 'é"[(x/x)]\n', '"[(1/x)]\n'],
    )


def test_control_tokens_stand_where_they_are_named_and_never_in_text() -> None:
    token = {"type": "token", "token": "<|mark|>"}
    free = {"type": "any_text"}
    elements = [free, tag_of(token, json_of({"type": "integer"}), token)]

    check(
        _format("sequence", {"elements": elements}),
        ["<|mark|>1<|mark|>", "text <|mark|>1<|mark|>"],
        ["text", "<|mark|>1", "<|mark|>x<|mark|>", "a<|mark|>1<|mark|>b"],
    )


def test_excluded_text_never_comes() -> None:
    check(
        _format("any_text", {"excludes": ["bad", "<"], "begins_without": ["["]}),
        ["", "ba d", "a [1]", "fine\n"],
        ["bad", "so bad!", "a<b", "[1]", " \n[1]"],
    )


def test_schemas_keep_their_own_definitions_apart() -> None:
    first = {"$ref": "#/$defs/a", "$defs": {"a": {"const": 1}}}
    second = {"$ref": "#/$defs/a", "$defs": {"a": {"const": 2}}}

    check(
        _format("sequence", {"elements": [json_of(first), json_of(second)]}),
        ["12"],
        ["11", "22", "21"],
    )


@pytest.mark.parametrize(
    ("tag", "shown"),
    [
        ("[]", "JSON object"),
        ("{", "not JSON"),
        ({}, "format"),
        (_format("nope", {}), "'nope' is none of const_string"),
        (_format("const_string", {}), "/format/value"),
        (_format("tag", {"begin": 5}), "/format/begin"),
        (_format("tag", {"begin": "a"}), "/format/content"),
        (_format("tag", tag_of("a", {"type": "any_text"}, "")), "end that is not empty"),
        (_format("or", {"elements": []}), "elements is empty"),
        (_format("json_schema", {"json_schema": 5}), "/format/json_schema"),
        (_format("json_schema", {"json_schema": {}, "style": "qwen_xml"}), "style"),
        (
            _format("json_schema", {"json_schema": {"type": "nope"}}),
            "(type) at /format/json_schema",
        ),
        (
            _format("sequence", {"elements": [{"type": "any_text"}, {"type": "any_text"}]}),
            "free text",
        ),
        ({"structures": [{"begin": "x", "schema": {}, "end": ""}], "triggers": ["y"]}, "trigger"),
        ({"structures": [{"begin": "x", "schema": {}, "end": ""}], "triggers": []}, "/triggers"),
        (_format("token", {"token": "mark"}), "/format/token"),
    ],
)
def test_mistakes_are_refused_with_their_place(tag: Any, shown: str) -> None:
    with pytest.raises(GrammarError) as caught:
        compiled(tag)

    assert shown in str(caught.value)


def test_formats_nested_without_end_are_refused() -> None:
    node: dict[str, Any] = {"type": "any_text"}
    for _ in range(40):
        node = {"type": "or", "elements": [node]}

    with pytest.raises(GrammarError, match="nested more than"):
        compiled({"format": node})
