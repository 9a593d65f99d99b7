"""What a server that is told to use xgrammar takes and refuses."""

from __future__ import annotations

import json
from typing import Any

import pytest

from runtime.grammars.matcher import GrammarError
from runtime.grammars.prepare_xgrammar import prepare_for_xgrammar
from runtime.grammars.prepared import GrammarEngine
from runtime.grammars.spec import GrammarKind, GrammarSpec


def schema_spec(schema: Any) -> GrammarSpec:
    return GrammarSpec(GrammarKind.JSON_SCHEMA, json.dumps(schema))


def closed(properties: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
        **more,
    }


@pytest.mark.parametrize(
    "schema",
    [
        closed({"a": {"type": "integer", "minimum": 0}, "b": {"enum": ["x", "y"]}}, required=["a"]),
        {"type": "array", "items": {"anyOf": [{"type": "null"}, {"type": "boolean"}]}},
        {"$ref": "#/$defs/n", "$defs": {"n": closed({"next": {"$ref": "#/$defs/n"}})}},
        {"type": "string", "maxLength": 5, "title": "a note"},
    ],
)
def test_schemas_on_the_list_go_to_xgrammar(schema: Any) -> None:
    assert prepare_for_xgrammar(schema_spec(schema)).engine is GrammarEngine.XGRAMMAR


@pytest.mark.parametrize(
    ("schema", "pointer"),
    [
        ({"type": "object"}, "additionalProperties"),
        (closed({"a": {"minimum": 5}}), "/properties/a"),
        (closed({"a": {"type": "string", "pattern": "^x$"}}), "pattern"),
        (closed({}, required=["b"]), ""),
        ({"type": "array", "items": {"type": "number"}}, "/items"),
        ({"anyOf": [{"type": "null"}], "maxLength": 5}, "maxLength"),
        ({"type": "array", "items": {"type": "null"}, "uniqueItems": True}, "uniqueItems"),
    ],
)
def test_all_other_schemas_are_refused_by_place(schema: Any, pointer: str) -> None:
    with pytest.raises(GrammarError) as caught:
        prepare_for_xgrammar(schema_spec(schema))
    assert pointer in str(caught.value)


def test_kinds_that_need_the_other_engine_are_refused_with_the_flag() -> None:
    with pytest.raises(GrammarError, match="--grammar-backend auto"):
        prepare_for_xgrammar(GrammarSpec(GrammarKind.LARK, 'start: "a"'))


@pytest.mark.parametrize(
    ("kind", "text", "words"),
    [
        (GrammarKind.REGEX, "a$b", r"\$ at character 2"),
        (GrammarKind.REGEX, "(?:a|^b)", r"\^ at character 6"),
        (GrammarKind.EBNF, 'root ::= "a" | b\nb ::= "(" b ")"', "rule b can never end"),
        (GrammarKind.EBNF, "root ::= word", "uses word"),
    ],
)
def test_what_the_engine_would_ignore_or_never_finish_is_refused(
    kind: GrammarKind, text: str, words: str
) -> None:
    with pytest.raises(GrammarError, match=words):
        prepare_for_xgrammar(GrammarSpec(kind, text))


@pytest.mark.parametrize("text", ["^ab$", r"a\$b", "[$^]x", "x[^$]y$"])
def test_anchors_at_the_ends_and_plain_signs_are_taken(text: str) -> None:
    assert prepare_for_xgrammar(GrammarSpec(GrammarKind.REGEX, text)).text == text


@pytest.mark.parametrize("text", [r"a[^\s\S]b", r"[^\w\W]", r"(?:a[^\d\D]|[^\D\d]b)c", r"[^\S\s]+"])
def test_a_regex_that_no_text_satisfies_is_said_to_be_one(text: str) -> None:
    with pytest.raises(GrammarError, match="no text satisfies this grammar"):
        prepare_for_xgrammar(GrammarSpec(GrammarKind.REGEX, text))


@pytest.mark.parametrize("text", [r"(a[^\s\S]b|c)", r"(a[^\s\S]b)*c"])
def test_a_way_that_leads_nowhere_is_refused_beside_one_that_ends(text: str) -> None:
    # The engine would take the a, and then allow nothing.
    with pytest.raises(GrammarError, match=r"\[\^\\s\\S\] at character 3 allows no character"):
        prepare_for_xgrammar(GrammarSpec(GrammarKind.REGEX, text))


@pytest.mark.parametrize(
    "text", [r"a[\s\S]b", r"\[\s\S]", "[^a]", r"[^\]\s]x", "[]a]", r"[^\x00-\x1f]"]
)
def test_classes_that_allow_some_character_are_taken(text: str) -> None:
    assert prepare_for_xgrammar(GrammarSpec(GrammarKind.REGEX, text)).text == text
