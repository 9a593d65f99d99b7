"""A keyword that cannot be enforced is refused by name, or left out on request and told."""

from __future__ import annotations

from typing import Any

import pytest
from support.schema_rig import accepted, schema_grammar

from runtime.grammars.matcher import GrammarError

STRING = {"type": "string"}
REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"type": "string", "pattern": r"(a)\1"}, "", "pattern"),
    ({"type": "string", "pattern": r"\bword"}, "", "pattern"),
    ({"type": "string", "pattern": "(?<=a)b"}, "", "pattern"),
    ({"type": "string", "pattern": "a(?=b)"}, "", "pattern"),
    ({"type": "string", "format": "x-color"}, "", "format"),
    ({"properties": {"a/b": {"format": "regex"}}}, "/properties/a~1b", "format"),
    ({"type": "array", "items": [{"$ref": "other.json"}]}, "/items/0", "$ref"),
    ({"$recursiveRef": "#"}, "", "$recursiveRef"),
    ({"not": {"type": "array", "uniqueItems": True}}, "", "not"),
    ({"patternProperties": {"(": {}}}, "", "patternProperties"),
    ({"type": "integer", "multipleOf": 11}, "", "multipleOf"),
    ({"allOf": [{"multipleOf": 5}, {"multipleOf": 11}]}, "/allOf/1", "multipleOf"),
    ({"type": "array", "items": STRING, "uniqueItems": True}, "", "uniqueItems"),
    (
        {
            "type": "array",
            "prefixItems": [
                {"type": "array", "items": {"enum": ["a", "b"]}, "uniqueItems": True},
                {"type": "array", "items": STRING, "uniqueItems": True},
                {"type": "array", "items": STRING, "uniqueItems": False},
            ],
        },
        "/prefixItems/1",
        "uniqueItems",
    ),
]


@pytest.mark.parametrize(("schema", "pointer", "keyword"), REFUSED)
def test_what_cannot_be_enforced_is_refused_with_its_place(
    schema: dict[str, Any], pointer: str, keyword: str
) -> None:
    with pytest.raises(GrammarError) as caught:
        schema_grammar(schema)

    assert (caught.value.pointer, caught.value.keyword) == (pointer, keyword)


@pytest.mark.parametrize(("schema", "pointer", "keyword"), REFUSED)
def test_on_request_it_is_left_out_and_told(
    schema: dict[str, Any], pointer: str, keyword: str
) -> None:
    grammar = schema_grammar(schema, drop_unsupported=True)

    assert list(grammar.dropped) == [f"{pointer}/{keyword}"]


def test_leaving_out_one_keyword_keeps_the_others() -> None:
    schema = {"type": "string", "format": "x-color", "maxLength": 2}

    grammar = schema_grammar(schema, drop_unsupported=True)

    assert accepted(grammar, '"ab"', '"abc"', "1") == ['"ab"']


def test_of_a_keyword_that_stands_in_many_places_only_those_at_fault_are_left_out() -> None:
    multiples = {str(k): {"type": "integer", "multipleOf": k} for k in (6, 11, 5, 13, 4)}
    schema = {"type": "object", "properties": multiples, "additionalProperties": False}

    grammar = schema_grammar(schema, drop_unsupported=True)

    assert list(grammar.dropped) == [f"/properties/{k}/multipleOf" for k in (11, 13)]
    assert accepted(grammar, '{"6": 12, "11": 5}', '{"6": 7}', '{"4": 6}') == ['{"6": 12, "11": 5}']


@pytest.mark.parametrize(
    ("schema", "keyword"),
    [
        ({"type": "text"}, "type"),
        ({"type": []}, "type"),
        ({"minLength": "3"}, "minLength"),
        ({"minLength": -1}, "minLength"),
        ({"minLength": 1.5}, "minLength"),
        ({"minimum": None}, "minimum"),
        ({"multipleOf": 0}, "multipleOf"),
        ({"required": "a"}, "required"),
        ({"enum": "a"}, "enum"),
        ({"anyOf": []}, "anyOf"),
        ({"properties": []}, "properties"),
        ({"uniqueItems": 1}, "uniqueItems"),
        ({"$ref": "#/$defs/none"}, "$ref"),
        ({"$ref": 1}, "$ref"),
        ({"$schema": "http://json-schema.org/draft-03/schema#"}, "$schema"),
    ],
)
@pytest.mark.parametrize("drop_unsupported", [False, True])
def test_a_malformed_keyword_is_refused_even_if_others_may_be_left_out(
    schema: dict[str, Any], keyword: str, drop_unsupported: bool
) -> None:
    with pytest.raises(GrammarError) as caught:
        schema_grammar(schema, drop_unsupported=drop_unsupported)

    assert caught.value.keyword == keyword


@pytest.mark.parametrize(
    "schema",
    [
        False,
        {"enum": []},
        {"type": "integer", "minimum": 3, "maximum": 2},
        {"type": "integer", "exclusiveMinimum": 1, "exclusiveMaximum": 2},
        {"type": "string", "minLength": 3, "maxLength": 2},
        {"type": "string", "pattern": "^a+$", "not": {"pattern": "^a"}},
        {"type": "string", "pattern": "^[ab]{2}$", "enum": ["a", "c"]},
        {"allOf": [STRING, {"type": "object"}]},
        {"type": "object", "required": ["a"], "properties": {"a": False}},
        {"type": "object", "required": ["a"], "properties": {"a": {"$ref": "#"}}},
        {"type": "array", "minItems": 1, "items": {"$ref": "#"}},
        {"type": "array", "items": {"enum": [1, 2]}, "uniqueItems": True, "minItems": 3},
    ],
)
def test_a_schema_that_no_finite_text_satisfies_is_refused(schema: Any) -> None:
    with pytest.raises(GrammarError, match="no finite JSON text"):
        schema_grammar(schema)


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (
            {"minimum": 5, "maximum": 3, "type": "integer"},
            "schema; minimum is 5, and maximum 3, at /",
        ),
        (
            {"type": "number", "minimum": 1.5, "maximum": 1.25},
            "schema; minimum is 1.5, and maximum 1.25, at /",
        ),
        (
            {
                "properties": {"a/b": {"type": "string", "minLength": 3, "maxLength": 2}},
                "required": ["a/b"],
                "type": "object",
            },
            "schema; minLength is 3, and maxLength 2, at /properties/a~1b",
        ),
        (
            {"type": "array", "items": {"enum": []}, "minItems": 1},
            "schema; enum is empty, at /items",
        ),
        ({"type": "array", "items": False, "minItems": 1}, "satisfies the schema at /"),
    ],
)
def test_a_place_that_contradicts_itself_is_named(schema: Any, expected: str) -> None:
    with pytest.raises(GrammarError) as caught:
        schema_grammar(schema)

    assert str(caught.value).endswith(expected)


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"allOf": [{"$ref": "#"}]},
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
        {"not": {"$ref": "#"}},
    ],
)
def test_a_reference_to_itself_without_content_is_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(GrammarError, match="refers to itself"):
        schema_grammar(schema)


def test_a_keyword_of_a_later_draft_is_not_ignored() -> None:
    draft_7 = "http://json-schema.org/draft-07/schema#"

    with pytest.raises(GrammarError, match="not part of the draft") as caught:
        schema_grammar({"$schema": draft_7, "dependentRequired": {"a": ["b"]}})

    assert caught.value.keyword == "dependentRequired"


def test_an_id_beside_a_reference_needs_a_draft_to_be_named() -> None:
    schema = {
        "$defs": {"a": {"$id": "http://x.org/a", "$ref": "b.json"}},
        "allOf": [{"$ref": "#/$defs/a"}],
    }

    with pytest.raises(GrammarError, match="drafts differ"):
        schema_grammar(schema)
