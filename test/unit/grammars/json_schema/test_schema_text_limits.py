"""What is refused before anything is worked out, and what the error says."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.schema_rig import schema_grammar

from runtime.grammars.json_schema import limits
from runtime.grammars.json_schema.schema_text import parse_json
from runtime.grammars.matcher import GrammarError

DEEP = '{"not":' * (limits.MAX_DEPTH + 1) + "{}" + "}" * (limits.MAX_DEPTH + 1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"type":"string","type":"object"}', "'type' stands twice"),
        ('{"properties":{"a":{},"a":{}}}', "'a' stands twice"),
        ('{"const":"\\ud800"}', "lone surrogate"),
        ('{"properties":{"\\udfff":{}}}', "lone surrogate"),
        ('{"minimum":NaN}', "NaN is not JSON"),
        ('{"minimum":1e400}', "too large"),
        ('{"minimum":%s}' % ("9" * 400), f"more than {limits.MAX_NUMBER_DIGITS} digits"),
        ('{"type":', "not valid JSON"),
        ("[1]", "a schema is an object, true or false"),
        ('"string"', "a schema is an object, true or false"),
        (DEEP, f"nested more than {limits.MAX_DEPTH} deep"),
        (DEEP[:-30], f"nested more than {limits.MAX_DEPTH} deep"),
        ("[" * 100_000, f"nested more than {limits.MAX_DEPTH} deep"),
        (json.dumps({"description": "x" * limits.MAX_SCHEMA_BYTES}), "bytes, at most 262144"),
        (json.dumps({"enum": [[]] * limits.MAX_SCHEMA_NODES}), "objects and arrays, at most 5000"),
        (json.dumps({"enum": [1] * (limits.MAX_SCALARS + 1)}), "values, at most 60000"),
    ],
)
def test_an_unreadable_or_oversized_schema_is_refused_by_name(text: str, message: str) -> None:
    with pytest.raises(GrammarError) as caught:
        schema_grammar(text)

    assert message in str(caught.value)


def test_brackets_inside_strings_do_not_count_as_nesting() -> None:
    text = json.dumps({"const": '[{"' * 200 + "\\"})

    assert parse_json(text) == {"const": '[{"' * 200 + "\\"}


@pytest.mark.parametrize(
    ("schema", "limit"),
    [
        ({"type": "string", "minLength": limits.MAX_REPEATS + 1}, limits.MAX_REPEATS),
        ({"type": "string", "pattern": "a{200000}"}, limits.MAX_REPEATS),
        (
            {"type": "string", "pattern": "a" * (limits.MAX_REGEX_CHARACTERS + 1)},
            limits.MAX_REGEX_CHARACTERS,
        ),
        ({"type": "string", "pattern": "(" * 60 + ")" * 60}, limits.MAX_REGEX_DEPTH),
        (
            {"properties": {f"p{i}": True for i in range(limits.MAX_PROPERTIES + 1)}},
            limits.MAX_PROPERTIES,
        ),
        ({"anyOf": [{"required": [f"r{i}"]} for i in range(500)]}, limits.MAX_ALTERNATIVES),
    ],
)
def test_a_limit_is_named_by_its_value(schema: dict[str, Any], limit: int) -> None:
    with pytest.raises(GrammarError, match=str(limit)):
        schema_grammar(schema)


def test_an_enum_of_ten_thousand_words_is_served() -> None:
    grammar = schema_grammar({"enum": [f"w{i}" for i in range(10_000)]})

    assert grammar.matcher().accept(list(b'"w9999"')) == 7
    assert grammar.matcher().accept(list(b'"w10000"')) == 6
