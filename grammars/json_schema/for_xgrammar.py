"""Which schemas xgrammar enforces exactly: an allow-list, for servers that are told to use it.

It compiles more than this, and then leaves parts of it out. What stands here was found without an
error of either kind over the official suite.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ..matcher import GrammarError
from .schema_text import JsonValue

_NOTES = frozenset(
    ("$schema", "$comment", "title", "description", "default", "examples", "$defs", "definitions")
)
_KEYWORDS = {
    "object": frozenset(("type", "properties", "required", "additionalProperties")),
    "array": frozenset(("type", "items", "minItems", "maxItems")),
    "string": frozenset(("type", "minLength", "maxLength")),
    "integer": frozenset(("type", "minimum", "maximum")),
    "boolean": frozenset(("type",)),
    "null": frozenset(("type",)),
}
_HINT = "xgrammar does not enforce this exactly; start the server with --grammar-backend auto"


def check_for_xgrammar(schema: JsonValue) -> None:
    """Raise GrammarError naming the first place of schema that is not on the list."""
    places: list[tuple[str, JsonValue]] = [("", schema)]
    while places:
        pointer, place = places.pop()
        if not isinstance(place, dict):
            raise GrammarError(_HINT, pointer=pointer)
        for name in ("$defs", "definitions"):
            places += _named(f"{pointer}/{name}", place.get(name, {}))
        places += _parts(pointer, {k: v for k, v in place.items() if k not in _NOTES})


def _parts(pointer: str, place: dict[str, JsonValue]) -> Iterator[tuple[str, JsonValue]]:
    """Check one schema without its notes; give the schemas in it."""
    for alone, check in _ALONE.items():
        if alone in place:
            _refuse_others(pointer, place, frozenset((alone,)))
            yield from check(f"{pointer}/{alone}", place[alone])
            return
    kind = place.get("type")
    if not isinstance(kind, str) or kind not in _KEYWORDS:
        raise GrammarError(_HINT, pointer=pointer, keyword="type")
    _refuse_others(pointer, place, _KEYWORDS[kind])
    if kind == "object":
        yield from _object(pointer, place)
    if kind == "array":
        if "items" not in place:
            raise GrammarError(_HINT, pointer=pointer, keyword="items")
        yield f"{pointer}/items", place["items"]


def _object(pointer: str, place: dict[str, JsonValue]) -> Iterator[tuple[str, JsonValue]]:
    if place.get("additionalProperties") is not False:
        raise GrammarError(_HINT, pointer=pointer, keyword="additionalProperties")
    properties, required = place.get("properties", {}), place.get("required", [])
    assert isinstance(properties, dict) and isinstance(required, list)  # checked by the rewriter
    for name in properties:
        if not (name.isascii() and name.isprintable()) or set(name) & set('"\\'):
            raise GrammarError(_HINT, pointer=f"{pointer}/properties", keyword="properties")
    if not set(map(str, required)) <= set(properties):
        raise GrammarError(_HINT, pointer=pointer, keyword="required")
    yield from _named(f"{pointer}/properties", properties)


def _any_of(pointer: str, value: JsonValue) -> Iterator[tuple[str, JsonValue]]:
    assert isinstance(value, list)
    for index, one in enumerate(value):
        yield f"{pointer}/{index}", one


def _reference(pointer: str, value: JsonValue) -> Iterator[tuple[str, JsonValue]]:
    if not isinstance(value, str) or not value.startswith(("#/$defs/", "#/definitions/")):
        raise GrammarError(_HINT, pointer=pointer)
    return iter(())


def _values(pointer: str, value: JsonValue) -> Iterator[tuple[str, JsonValue]]:
    for one in value if isinstance(value, list) else [value]:
        is_plain = isinstance(one, str) and one.isascii() and one.isprintable()
        if not (one is None or isinstance(one, bool | int) or is_plain):
            raise GrammarError(_HINT, pointer=pointer)
    return iter(())


def _named(pointer: str, value: JsonValue) -> Iterator[tuple[str, JsonValue]]:
    assert isinstance(value, dict)
    for name, one in value.items():
        yield f"{pointer}/{name}", one


def _refuse_others(pointer: str, place: dict[str, JsonValue], known: frozenset[str]) -> None:
    for name in place:
        if name not in known:
            raise GrammarError(_HINT, pointer=pointer, keyword=name)


_ALONE: dict[str, Callable[[str, JsonValue], Iterator[tuple[str, JsonValue]]]] = {
    "$ref": _reference,
    "anyOf": _any_of,
    "enum": _values,
    "const": _values,
}
