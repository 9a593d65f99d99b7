"""Schemas made to stall a server: each is served or refused soon, and nothing else."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from support.schema_rig import schema_grammar

from runtime.grammars.matcher import GrammarError

SECONDS = 2.0  # of this thread's own time, so that a busy machine does not matter


def doubled(word: str, depth: int) -> Any:
    schema: Any = {"type": "integer"}
    for _ in range(depth):
        options = [{"type": "object", "properties": {name: schema}} for name in "ab"]
        schema = {word: options}
    return schema


def referred(word: str, depth: int) -> Any:
    """As doubled, but small in its text."""
    definitions: dict[str, Any] = {"d0": {"type": "integer"}}
    for level in range(1, depth + 1):
        below = {"$ref": f"#/$defs/d{level - 1}"}
        options = [{"type": "object", "properties": {name: below}} for name in "ab"]
        definitions[f"d{level}"] = {word: options}
    return {"$defs": definitions, "$ref": f"#/$defs/d{depth}"}


CHOICES = [{"anyOf": [{"required": [f"a{i}"]}, {"required": [f"b{i}"]}]} for i in range(30)]
NAMES = [f"{first}.*{last}" for first in "abcdef" for last in "xyz"]
HOSTILE: dict[str, Any] = {
    "nesting": json.loads('{"items":' * 60 + "{}" + "}" * 60),
    "oneOf doubling": doubled("oneOf", 6),
    "oneOf doubling by reference": referred("oneOf", 14),
    "anyOf doubling by reference": referred("anyOf", 30),
    "not upon not": {"$defs": {"a": {"not": {"items": {"not": {"$ref": "#/$defs/a"}}}}},
                     "$ref": "#/$defs/a"},
    "products of alternatives": {"allOf": CHOICES},
    "many properties": {"properties": {f"p{i}": {"type": "string"} for i in range(1_000)}},
    "dependencies": {"dependentRequired": {f"a{i}": [f"b{i}"] for i in range(20)}},
    "overlapping patterns": {"patternProperties": {name: {"type": "null"} for name in NAMES}},
    "long enum against a pattern": {"enum": ["a" * i for i in range(600)], "pattern": "^(a|aa)+b$"},
    "subset explosion": {
        "pattern": "^(a|b)*a(a|b){30}$",
        "not": {"pattern": "^(a|b)*b(a|b){30}$"},
        "type": "string",
    },
    "counted repetitions": {"type": "string", "pattern": "^(([a-z]{1,60}){1,60}){1,60}$"},
    "length against a pattern": {"type": "string", "pattern": "^(a*)*b$", "minLength": 50_000},
    "counting items": {
        "contains": {"type": "null"}, "minContains": 90, "maxContains": 95, "minItems": 900,
    },
    "counting properties": {
        "minProperties": 50, "maxProperties": 90, "properties": {f"p{i}": {} for i in range(200)},
    },
    "unique values": {"uniqueItems": True, "items": {"enum": list(range(60))}, "type": "array"},
    "requires itself": {"type": "object", "required": ["a"], "properties": {"a": {"$ref": "#"}}},
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_schema_is_served_or_refused_within_two_seconds(name: str) -> None:
    start = time.thread_time()

    try:
        schema_grammar(HOSTILE[name])
    except GrammarError as error:
        assert error.reason

    assert time.thread_time() - start < SECONDS
