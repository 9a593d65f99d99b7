"""uniqueItems where items have few values: every array of distinct items, and no dead end."""

from __future__ import annotations

import json
from itertools import product
from typing import Any

import numpy as np
import pytest
from jsonschema import Draft202012Validator
from support.schema_rig import accepted, schema_grammar, vocabulary

from runtime.grammars.matcher import Matcher
from runtime.grammars.spec import JsonWhitespace

ITEMS = ["a", 1, None, 2.5]
SCHEMAS: list[dict[str, Any]] = [
    {"items": {"enum": ["a", 1, None]}},
    {"items": {"enum": ["a"]}},
    {"items": {"enum": ["a", 1, None]}, "minItems": 2, "maxItems": 2},
    {"items": {"enum": ["a", 1]}, "maxItems": 1},
    {"prefixItems": [{"const": "a"}, {"enum": ["a", 1]}], "items": {"enum": [1, None]}},
    {"prefixItems": [{"type": "string"}, {"type": "number"}], "items": False},
]


@pytest.mark.parametrize("schema", SCHEMAS, ids=json.dumps)
def test_exactly_the_arrays_of_distinct_items_are_written(schema: dict[str, Any]) -> None:
    schema = {"type": "array", "uniqueItems": True, **schema}
    grammar = schema_grammar(schema)

    validator = Draft202012Validator(schema)
    arrays = [list(row) for size in range(4) for row in product(ITEMS, repeat=size)]
    texts = [json.dumps(array) for array in arrays]
    assert accepted(grammar, *texts) == [
        text for text in texts if validator.is_valid(json.loads(text))
    ]


@pytest.mark.parametrize("schema", SCHEMAS[:5], ids=json.dumps)
def test_every_beginning_can_be_completed(schema: dict[str, Any]) -> None:
    grammar = schema_grammar(
        {"type": "array", "uniqueItems": True, **schema}, JsonWhitespace.COMPACT
    )

    mask = np.zeros(vocabulary().bitmask_words, np.uint32)
    stack: list[Matcher] = [grammar.matcher()]
    num_seen = 0
    while stack:
        matcher = stack.pop()
        num_seen += 1
        matcher.fill(mask)
        legal = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
        assert len(legal)
        for token_id in legal:
            following = matcher.fork()
            assert following.accept([int(token_id)]) == 1
            if not following.is_finished:
                stack.append(following)
    assert num_seen > 3


def test_equal_numbers_and_equal_objects_are_one_value() -> None:
    schema = {
        "type": "array",
        "uniqueItems": True,
        "items": {"enum": [1, 1.0, {"a": 1, "b": 2}, {"b": 2.0, "a": 1}]},
        "minItems": 2,
    }

    texts = ["[1,1]", '[1,{"a":1,"b":2}]', '[{"a":1,"b":2},{"b":2,"a":1}]', "[1.0,1]"]
    assert accepted(schema_grammar(schema), *texts) == ['[1,{"a":1,"b":2}]']
