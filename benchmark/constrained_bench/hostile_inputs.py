"""Grammars made to stall or kill whoever compiles them, as fields of a request."""

from __future__ import annotations

import json
from typing import Any

_TEXT = {"type": "string"}


def hostile_fields(size: float = 1.0) -> dict[str, dict[str, Any]]:
    """The inputs by name, each as request fields; size below one makes them smaller.

    A "title" in the schema may be changed to get the same work a second time.
    """

    def some(count: int) -> int:
        return max(2, int(count * size))

    schemas: dict[str, Any] = {
        "nesting 3,000": _nested(some(3_000)),
        "oneOf doubling 14": _doubling(some(14)),
        "20,000 properties": _object({f"p{i}": _TEXT for i in range(some(20_000))}, []),
        "enum 10,000": {"enum": [f"value number {i}" for i in range(some(10_000))]},
        "$ref loop": {
            "$ref": "#/$defs/a",
            "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}},
        },
        "requires itself": {
            "$ref": "#/$defs/node",
            "$defs": {"node": _object({"next": {"$ref": "#/$defs/node"}}, ["next"])},
        },
        "20 x 20 x 20 optional": _optional_tree(some(20), 3),
        "pattern bomb": {"type": "string", "pattern": "^(.*a){18}.*$", "maxLength": 4_000},
        "pattern of counts": {"type": "string", "pattern": "^((a{1,60}){1,60}){1,60}$"},
        "email without aaa": {"type": "string", "format": "email", "not": {"pattern": "a{3}"}},
        "allOf of choices": {"allOf": [_choice(i) for i in range(some(7))]},
    }
    texts = {
        "regex with a wide memory": "(a|b)*a(a|b){22}",
        "regex of nested counts": "((a{1,60}){1,60}){1,60}",
        "regex [a-z]{1,500000}": "[a-z]{1,500000}",
    }
    found = {name: schema_fields(schema) for name, schema in schemas.items()}
    found |= {name: {"regex": text} for name, text in texts.items()}
    options = " | ".join(f'"w{i}"' for i in range(some(20_000)))
    chain = "\n".join(f'r{i} ::= "x" | r{i + 1}' for i in range(some(9_000)))
    grammars = {
        "ebnf of 60,000 brackets": 'root ::= "a" ' + "(" * some(60_000),
        "ebnf of 20,000 options": f"root ::= {options}",
        "ebnf of 20,000 options, recursive": f'root ::= "(" root ")" | {options}',
        "ebnf of 9,000 rules in a chain": f'root ::= r0\n{chain}\nr{some(9_000)} ::= "x"',
    }
    found |= {name: {"ebnf": text} for name, text in grammars.items()}
    return found


def schema_fields(schema: Any) -> dict[str, Any]:
    """The request fields that ask for schema."""
    wanted = {"name": "answer", "strict": True, "schema": schema}
    return {"response_format": {"type": "json_schema", "json_schema": wanted}}


def body_of(fields: dict[str, Any], number: int, base: dict[str, Any]) -> bytes:
    """The JSON body of base with fields; with another number it is another grammar."""
    fields = dict(fields)
    if "response_format" in fields:
        wanted = fields["response_format"]["json_schema"]
        titled = {"title": f"input {number}", **wanted["schema"]}
        return _dump({**base, **schema_fields(titled)})
    if "regex" in fields:
        fields["regex"] = f"{fields['regex']}|{number}"
    else:
        fields["ebnf"] = f"{fields['ebnf']}\n# {number}"
    return _dump({**base, **fields})


def _object(properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


def _nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = _TEXT
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


def _doubling(depth: int) -> dict[str, Any]:
    # Both branches refer to the next level: 2^depth ways, in a text that grows with depth only.
    levels = {
        f"level{i}": {
            "oneOf": [
                _object({name: {"$ref": f"#/$defs/level{i + 1}"}}, [name]) for name in ("a", "b")
            ]
        }
        for i in range(depth)
    }
    return {"$ref": "#/$defs/level0", "$defs": {**levels, f"level{depth}": _TEXT}}


def _optional_tree(width: int, depth: int) -> dict[str, Any]:
    if depth == 0:
        return _TEXT
    return {
        "type": "object",
        "properties": {f"o{depth}_{i}": _optional_tree(width, depth - 1) for i in range(width)},
    }


def _choice(number: int) -> dict[str, Any]:
    names = [f"p{number}_{i}" for i in range(4)]
    return {"anyOf": [{"type": "object", "properties": {n: _TEXT}, "required": [n]} for n in names]}


def _dump(body: dict[str, Any]) -> bytes:
    """json.dumps without its bound on nesting."""
    return "".join(_written(body)).encode()


def _written(value: Any) -> list[str]:
    """The text of value in parts, by a stack of its own."""
    parts: list[str] = []
    todo: list[Any] = [value]
    while todo:
        one = todo.pop()
        if isinstance(one, _Literal):
            parts.append(one)
        elif isinstance(one, dict):
            items: list[Any] = [_Literal("}")]
            for index, (key, inner) in reversed(list(enumerate(one.items()))):
                items += [inner, _Literal(("," if index else "") + json.dumps(key) + ":")]
            todo += [*items, _Literal("{")]
        elif isinstance(one, list):
            items = [_Literal("]")]
            for index, inner in reversed(list(enumerate(one))):
                items += [inner, _Literal("," if index else "")]
            todo += [*items, _Literal("[")]
        else:
            parts.append(json.dumps(one))
    return parts


class _Literal(str):
    """Text that is written as it is."""
