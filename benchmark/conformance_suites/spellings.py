"""The texts by which an instance may be written.

A valid instance is accepted if any of them is; an invalid one must be refused in all. Grammars fix
the order of keys and write whole numbers without decimals, so that instances are also written in
the schema's order and with 1 for 1.0.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import islice, permutations, product
from typing import Any

_LAYOUTS: tuple[dict[str, Any], ...] = (
    {"separators": (",", ":")},
    {"separators": (", ", ": ")},
    {"indent": 2},
)
_MAX_ORDERS = 24
_MAX_DEPTH = 6
_MAX_INSTANCE_DEPTH = 40


def texts(value: Any, schema: Any) -> Iterator[str]:
    """Spellings, the likeliest first."""
    seen = set()
    for variant in _variants(value, schema):
        for layout in _LAYOUTS:
            text = json.dumps(variant, ensure_ascii=False, **layout)
            if text not in seen:
                seen.add(text)
                yield text


def _variants(value: Any, schema: Any) -> Iterator[Any]:
    yield value
    ordered = _ordered(value, schema, schema, 0)
    yield ordered
    # In draft 4, 1.0 is no integer: there, 1 is another instance rather than another spelling.
    is_draft_4 = isinstance(schema, dict) and "draft-04" in str(schema.get("$schema"))
    if not is_draft_4:
        yield _whole(ordered)
    if isinstance(value, dict) and 2 <= len(value) <= 4:
        for names in islice(permutations(value), _MAX_ORDERS):
            yield {name: value[name] for name in names}
    yield from islice(_orders(value), _MAX_ORDERS)


def _orders(value: Any) -> Iterator[Any]:
    """The value with the keys of small objects in every order, at all depths."""
    if isinstance(value, list):
        for items in product(*(tuple(islice(_orders(one), _MAX_ORDERS)) for one in value)):
            yield list(items)
    elif isinstance(value, dict):
        orders = permutations(value) if len(value) <= 4 else [tuple(value)]
        inner = {name: tuple(islice(_orders(one), _MAX_ORDERS)) for name, one in value.items()}
        for names in orders:
            for values in product(*(inner[name] for name in names)):
                yield dict(zip(names, values, strict=True))
    else:
        yield value


def _whole(value: Any) -> Any:
    if isinstance(value, float) and abs(value) < 1e300 and value == int(value):
        return int(value)
    if isinstance(value, dict):
        return {name: _whole(one) for name, one in value.items()}
    return [_whole(one) for one in value] if isinstance(value, list) else value


def _ordered(value: Any, schema: Any, root: Any, depth: int) -> Any:
    """The value with its keys in the order of the schema, as far as that is plain."""
    if depth > _MAX_INSTANCE_DEPTH:
        return value
    if isinstance(value, list):
        items = _one(schema, root, "items", 0)
        return [_ordered(one, items, root, depth + 1) for one in value]
    if not isinstance(value, dict):
        return value
    order = list(_names(schema, root, 0))
    names = [name for name in dict.fromkeys(order) if name in value]
    names += [name for name in value if name not in names]
    return {
        name: _ordered(value[name], _property(schema, root, name, 0), root, depth + 1)
        for name in names
    }


def _names(schema: Any, root: Any, depth: int) -> Iterator[str]:
    if depth > _MAX_DEPTH or not isinstance(schema, dict):
        return
    for word, value in schema.items():
        if word == "properties" and isinstance(value, dict):
            yield from value
        elif word == "$ref":
            yield from _names(_target(value, root), root, depth + 1)
        elif word in ("allOf", "anyOf", "oneOf") and isinstance(value, list):
            for one in value:
                yield from _names(one, root, depth + 1)
        elif word in ("if", "then", "else"):
            yield from _names(value, root, depth + 1)
    required = schema.get("required")
    yield from required if isinstance(required, list) else ()


def _property(schema: Any, root: Any, name: str, depth: int) -> Any:
    """The sub-schema of a property, or of the keys among which it falls."""
    if depth > _MAX_DEPTH or not isinstance(schema, dict):
        return {}
    properties = schema.get("properties")
    if isinstance(properties, dict) and name in properties:
        return properties[name]
    for one in _in_place(schema, root):
        found = _property(one, root, name, depth + 1)
        if found:
            return found
    patterns = schema.get("patternProperties")
    for pattern, one in patterns.items() if isinstance(patterns, dict) else ():
        try:
            if re.search(pattern, name):
                return one
        except re.error:
            continue
    return schema.get("additionalProperties", {})


def _one(schema: Any, root: Any, word: str, depth: int) -> Any:
    """The sub-schema under a keyword, also that of what is referred to."""
    if depth > _MAX_DEPTH or not isinstance(schema, dict):
        return {}
    if isinstance(schema.get(word), dict):
        return schema[word]
    for one in _in_place(schema, root):
        found = _one(one, root, word, depth + 1)
        if found:
            return found
    return {}


def _in_place(schema: dict[str, Any], root: Any) -> Iterator[Any]:
    if "$ref" in schema:
        yield _target(schema["$ref"], root)
    for word in ("allOf", "anyOf", "oneOf"):
        value = schema.get(word)
        yield from value if isinstance(value, list) else ()
    for word in ("then", "else"):
        if word in schema:
            yield schema[word]


def _target(reference: Any, root: Any) -> Any:
    if not isinstance(reference, str) or not reference.startswith("#"):
        return {}
    value = root
    for step in reference[1:].split("/")[1:]:
        step = step.replace("~1", "/").replace("~0", "~")
        if isinstance(value, dict):
            value = value.get(step, {})
        elif isinstance(value, list) and step.isdigit() and int(step) < len(value):
            value = value[int(step)]
        else:
            return {}
    return value
