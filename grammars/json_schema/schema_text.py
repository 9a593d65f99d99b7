"""From the text of a schema to values, with the checks that need the text.

Keys keep their order; numbers keep their exact value (int or Decimal); a repeated key is an error,
since readers disagree about which one counts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from decimal import Decimal
from math import isfinite
from typing import TypeAlias

from ..matcher import GrammarError
from . import limits

JsonValue: TypeAlias = "None | bool | int | Decimal | str | list[JsonValue] | dict[str, JsonValue]"

_BRACKETS = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{}]', re.DOTALL)


def parse_json(text: str, what: str = "schema") -> JsonValue:
    """The value of the text. Raises GrammarError for what is no JSON or beyond a limit."""
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > limits.MAX_SCHEMA_BYTES:
        raise GrammarError(f"{what} has {size} bytes, at most {limits.MAX_SCHEMA_BYTES}")
    _check_depth(text, what)
    try:
        value: JsonValue = json.loads(
            text,
            object_pairs_hook=_object,
            parse_int=_integer,
            parse_float=_decimal,
            parse_constant=_constant,
        )
    except (json.JSONDecodeError, RecursionError) as error:
        raise GrammarError(f"{what} is not valid JSON: {error}") from None
    _check_nodes(value, what)
    return value


def _check_depth(text: str, what: str) -> None:
    depth = 0
    for bracket in _BRACKETS.findall(text):
        if bracket in ("[", "{"):
            depth += 1
            if depth > limits.MAX_DEPTH:
                raise GrammarError(f"{what} is nested more than {limits.MAX_DEPTH} deep")
        elif bracket in ("]", "}"):
            depth -= 1


def _check_nodes(value: JsonValue, what: str) -> None:
    containers = scalars = 0
    for node in _nodes(value):
        if isinstance(node, (dict, list)):
            containers += 1
        else:
            scalars += 1
        strings = [node] if isinstance(node, str) else node if isinstance(node, dict) else ()
        for string in strings:
            if not string.isascii() and any("\ud800" <= char <= "\udfff" for char in string):
                raise GrammarError(f"{what} holds a lone surrogate in {string!r}")
    if containers > limits.MAX_SCHEMA_NODES:
        raise GrammarError(
            f"{what} has {containers} objects and arrays, at most {limits.MAX_SCHEMA_NODES}"
        )
    if scalars > limits.MAX_SCALARS:
        raise GrammarError(f"{what} has {scalars} values, at most {limits.MAX_SCALARS}")


def _nodes(value: JsonValue) -> Iterator[JsonValue]:
    stack = [value]
    while stack:
        node = stack.pop()
        yield node
        if isinstance(node, dict):
            stack.extend(node.values())
        elif isinstance(node, list):
            stack.extend(node)


def _object(pairs: list[tuple[str, JsonValue]]) -> dict[str, JsonValue]:
    value = dict(pairs)
    if len(value) < len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in names if names.count(name) > 1)
        raise GrammarError(f"the key {repeated!r} stands twice in one object")
    return value


def _integer(digits: str) -> int:
    if len(digits) > limits.MAX_NUMBER_DIGITS:
        raise GrammarError(f"a number has more than {limits.MAX_NUMBER_DIGITS} digits")
    return int(digits)


def _decimal(text: str) -> Decimal:
    value = Decimal(text)
    is_long = len(text) > limits.MAX_NUMBER_DIGITS or value.adjusted() < -300
    if is_long or not isfinite(float(value)):
        raise GrammarError(f"the number {text[:40]} is too long or too large")
    return value


def _constant(name: str) -> None:
    raise GrammarError(f"{name} is not JSON")
