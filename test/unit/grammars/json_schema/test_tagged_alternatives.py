"""oneOf over objects that a tag tells apart: any number of them, and exact where tags overlap."""

from __future__ import annotations

import json
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from support.schema_rig import accepted, schema_grammar


def tagged(tag: Any, index: int, is_closed: bool) -> dict[str, Any]:
    schema = {
        "type": "object",
        "properties": {
            "kind": tag,
            "a": {"type": "integer"},
            f"b{index}": {"type": "string", "maxLength": 10},
        },
        "required": ["kind", "a"],
    }
    return {**schema, "additionalProperties": False} if is_closed else schema


@pytest.mark.parametrize("is_closed", [True, False])
def test_many_kinds_are_served_and_each_has_its_own_keys(is_closed: bool) -> None:
    kinds = [tagged({"const": f"kind {i}"}, i, is_closed) for i in range(80)]
    grammar = schema_grammar({"oneOf": kinds})

    assert accepted(grammar, '{"kind": "kind 7", "a": 1, "b7": "x"}')
    assert not accepted(grammar, '{"kind": "kind 7", "a": 1, "b7": 5}')
    assert not accepted(grammar, '{"kind": "kind 80", "a": 1}')
    if is_closed:
        assert not accepted(grammar, '{"kind": "kind 7", "a": 1, "b8": "x"}')


TAGS: list[list[Any]] = [
    [{"const": "x"}, {"const": "x"}],
    [{"enum": ["x", "y"]}, {"enum": ["y", "z"]}],
    [{"enum": [1, "x"]}, {"const": 1.0}],
    [{"const": [1]}, {"const": [1]}],
    [{"const": {"p": 1}}, {"const": {"p": 2}}],
    [{"const": "x"}, {"type": "string"}],
    [{"const": "x", "maxLength": 0}, {"const": "y"}],
    [{"const": "x"}, True],
]


@pytest.mark.parametrize("tags", TAGS, ids=json.dumps)
@pytest.mark.parametrize("is_closed", [True, False])
def test_tags_that_overlap_exclude_just_what_both_allow(tags: list[Any], is_closed: bool) -> None:
    schema = {"oneOf": [tagged(tag, i, is_closed) for i, tag in enumerate(tags)]}
    grammar = schema_grammar(schema)

    validator = Draft202012Validator(schema)
    values = [
        {"kind": kind, "a": 1, **more}
        for kind in ("x", "y", "z", "", 1, [1], {"p": 1}, {"p": 2}, None)
        for more in ({}, {"b0": "x"}, {"b1": "x"}, {"b0": 5})
    ]
    assert [one for one in values if accepted(grammar, json.dumps(one))] == [
        one for one in values if validator.is_valid(one)
    ]
