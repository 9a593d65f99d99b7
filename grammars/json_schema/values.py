"""JSON values as the algebra sees them: a shape for each constant, and its canonical text."""

from __future__ import annotations

import json
from collections.abc import Iterable
from decimal import Decimal
from fractions import Fraction

from .arrays import Arrays
from .formulas import Constant
from .numbers import just
from .objects import Objects
from .regex_ast import NOTHING, words
from .schema_text import JsonValue
from .shapes import Shape


def canonical_text(value: JsonValue) -> str:
    """Text that equal values share, but for the order of keys, which is kept."""
    if isinstance(value, dict):
        pairs = (f"{json.dumps(key)}:{canonical_text(item)}" for key, item in value.items())
        return "{" + ",".join(pairs) + "}"
    if isinstance(value, list):
        return "[" + ",".join(canonical_text(item) for item in value) + "]"
    if isinstance(value, Decimal):
        return str(int(value)) if value == value.to_integral_value() else str(value.normalize())
    return json.dumps(value)


def constant(value: JsonValue) -> Constant:
    return Constant(canonical_text(value))


def shape_of_text(text: str) -> Shape:
    """The one value that canonical text stands for."""
    return shape_of_values([json.loads(text, parse_float=Decimal)])


def shape_of_values(values: Iterable[JsonValue]) -> Shape:
    """Exactly these values."""
    null = False
    booleans, numbers, strings = set(), [], []
    arrays: dict[Arrays, None] = {}
    objects: dict[Objects, None] = {}
    for value in values:
        if value is None:
            null = True
        elif isinstance(value, bool):
            booleans.add(value)
        elif isinstance(value, (int, Decimal)):
            numbers.append(Fraction(value))
        elif isinstance(value, str):
            strings.append(value)
        elif isinstance(value, list):
            arrays[_array(value)] = None
        else:
            objects[_object(value)] = None
    return Shape(
        null,
        frozenset(booleans),
        (just(tuple(numbers)),) if numbers else (),
        words(strings) if strings else NOTHING,
        tuple(arrays),
        tuple(objects),
    )


def _array(value: list[JsonValue]) -> Arrays:
    items = tuple(constant(item) for item in value)
    return Arrays(items, low=len(items), high=len(items))


def _object(value: dict[str, JsonValue]) -> Objects:
    properties = tuple((key, constant(item)) for key, item in value.items())
    return Objects(properties, frozenset(value), rest=())
