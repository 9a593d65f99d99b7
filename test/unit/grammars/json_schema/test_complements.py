"""not, and what is built on it, against the same schema twice negated."""

from __future__ import annotations

import json
from itertools import permutations
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from support.schema_rig import accepted, schema_grammar

from runtime.grammars.matcher import Grammar

VALUES: list[Any] = [
    None, True, 0, 1, 2.5, "", "a", "ab", [], [1], [1, "a"], ["a", "a", 1], {}, {"a": 1}, {"b": 5},
    {"a": "x"}, {"a": 1, "b": 5}, {"b": 5, "c": -1}, {"c": 1}, {"z": ""}, {"a": {"b": 5}},
]  # fmt: skip
SCHEMAS: list[dict[str, Any]] = [
    {"enum": [{"b": 5, "c": -1}, {}, {"z": ""}]},
    {"enum": [[1], {"a": 1}, None, 2.5, "a"]},
    {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
    {"type": "object", "properties": {"a": True}, "additionalProperties": {"type": "integer"}},
    {"type": "object", "patternProperties": {"^[bc]$": {"minimum": 0}}},
    {"type": "object", "maxProperties": 0},
    {"type": ["array", "string"], "minItems": 1, "maxItems": 2, "minLength": 2},
    {"type": "array", "prefixItems": [{"type": "integer"}], "items": {"type": "string"}},
    {"type": "array", "contains": {"type": "string"}, "maxContains": 1},
    {"anyOf": [{"required": ["a"]}, {"required": ["b"]}], "type": "object"},
    {"allOf": [{"required": ["a"]}, {"not": {"required": ["b"]}}], "type": "object"},
    {"if": {"type": "object"}, "then": {"required": ["a"]}, "else": {"type": "string"}},
    {"properties": {"a": {"properties": {"b": {"const": 5}}, "type": "object"}}},
]


@pytest.mark.parametrize("schema", SCHEMAS, ids=json.dumps)
@pytest.mark.parametrize("times", [0, 1, 2, 3])
def test_negation_swaps_exactly_what_is_accepted(schema: dict[str, Any], times: int) -> None:
    for _ in range(times):
        schema = {"not": schema}
    grammar = schema_grammar(schema)

    validator = Draft202012Validator(schema)
    assert [value for value in VALUES if is_written(grammar, value)] == [
        value for value in VALUES if validator.is_valid(value)
    ]


# With patternProperties it takes two conditions on free keys at once, which is refused.
PLAIN = [schema for schema in SCHEMAS if "patternProperties" not in schema]


@pytest.mark.parametrize("schema", PLAIN, ids=json.dumps)
def test_a_schema_and_its_negation_share_nothing_and_leave_nothing(schema: dict[str, Any]) -> None:
    either = schema_grammar({"oneOf": [schema, {"not": schema}]})

    assert [value for value in VALUES if is_written(either, value)] == VALUES


def is_written(grammar: Grammar, value: Any) -> bool:
    """Whether the value is a text of the grammar in one order of its keys."""
    if not isinstance(value, dict):
        return bool(accepted(grammar, json.dumps(value)))
    orders = permutations(value.items())
    return any(accepted(grammar, json.dumps(dict(order))) for order in orders)
