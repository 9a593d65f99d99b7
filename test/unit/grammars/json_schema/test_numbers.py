"""Bounds and multiples against exact arithmetic."""

from __future__ import annotations

import random
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from support.schema_rig import accepted, schema_grammar

SCHEMAS: list[dict[str, Any]] = [
    {"minimum": 0},
    {"minimum": -7, "maximum": 118},
    {"exclusiveMinimum": -0.5, "exclusiveMaximum": 0.75},
    {"minimum": 9.95, "maximum": 10.05},
    {"exclusiveMinimum": 99, "maximum": 1001.5},
    {"maximum": -20.25},
    {"exclusiveMaximum": 0},
    {"multipleOf": 2},
    {"multipleOf": 3},
    {"multipleOf": 15, "minimum": 20},
    {"multipleOf": 8},
    {"multipleOf": 100},
    {"multipleOf": 0.25},
    {"multipleOf": 0.01},
    {"multipleOf": 1.5, "maximum": 50},
    {"not": {"multipleOf": 5}, "minimum": -10},
    {"not": {"minimum": 3, "maximum": 12}},
    {"not": {"enum": [1, 2.5, 0]}},
]


def random_numbers(seed: int) -> list[str]:
    draw = random.Random(seed)
    found = ["0", "-0.5", "10", "9.95", "10.05", "0.75", "-7", "118", "1.0", "2.50"]
    for _ in range(150):
        scale = draw.choice((0, 0, 1, 2, 3))
        size = draw.choice((10, 200, 20_000))
        found.append(str(Decimal(draw.randint(-size, size)).scaleb(-scale)))
    return [f"{Decimal(text):f}" for text in found if Decimal(text) or not text.startswith("-")]


def holds(schema: dict[str, Any], value: Fraction, *, whole: bool) -> bool:
    def number(name: str) -> Fraction:
        return Fraction(str(schema[name]))

    if "not" in schema and holds(schema["not"], value, whole=False):
        return False
    return (
        ("minimum" not in schema or value >= number("minimum"))
        and ("exclusiveMinimum" not in schema or value > number("exclusiveMinimum"))
        and ("maximum" not in schema or value <= number("maximum"))
        and ("exclusiveMaximum" not in schema or value < number("exclusiveMaximum"))
        and ("multipleOf" not in schema or (value / number("multipleOf")).denominator == 1)
        and ("enum" not in schema or value in [Fraction(str(one)) for one in schema["enum"]])
        and (not whole or value.denominator == 1)
    )


@pytest.mark.parametrize("schema", SCHEMAS, ids=str)
def test_exactly_the_numbers_of_the_schema_are_written(schema: dict[str, Any]) -> None:
    grammar = schema_grammar({"type": "number", **schema})

    texts = random_numbers(seed=1)
    assert accepted(grammar, *texts) == [
        text for text in texts if holds(schema, Fraction(text), whole=False)
    ]


@pytest.mark.parametrize("schema", SCHEMAS, ids=str)
def test_integers_are_written_without_decimals(schema: dict[str, Any]) -> None:
    grammar = schema_grammar({"type": "integer", **schema})

    texts = random_numbers(seed=2)
    assert accepted(grammar, *texts) == [
        text for text in texts if "." not in text and holds(schema, Fraction(text), whole=True)
    ]


def test_bounds_beyond_what_floats_tell_apart_are_exact() -> None:
    grammar = schema_grammar({"type": "integer", "minimum": 2**53 + 1, "maximum": 2**64 + 1})

    inside, outside = [2**53 + 1, 2**64, 2**64 + 1], [2**53, 2**64 + 2, 10**21]
    assert accepted(grammar, *map(str, inside + outside)) == [str(n) for n in inside]


def test_decimals_cannot_round_to_an_excluded_bound() -> None:
    grammar = schema_grammar({"type": "number", "exclusiveMaximum": 3.3, "minimum": 3})

    assert accepted(grammar, "3.29", "3.2999999999999999999", "3.3") == ["3.29"]


def test_a_number_that_is_no_integer_cannot_be_read_as_one() -> None:
    grammar = schema_grammar({"type": "number", "not": {"type": "integer"}})

    text = "80091265510021090114.1"
    assert float(text).is_integer()
    assert accepted(grammar, "0.5", "2.0", text) == ["0.5"]


def test_the_marks_of_draft_4_exclude_the_bound() -> None:
    schema = {"type": "integer", "minimum": 3, "exclusiveMinimum": True, "maximum": 5}

    assert accepted(schema_grammar(schema), "3", "4", "5", "6") == ["4", "5"]
