"""The places of a schema document, and where its references lead.

A place is a sub-schema; it has a number, by which formulas speak of it. References are followed
within the document only: by JSON pointer, $anchor and $id, as drafts 7 and 2020-12 define them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from urllib.parse import unquote, urljoin, urlsplit

from .errors import InvalidSchema, UnsupportedKeyword
from .schema_text import JsonValue

ONE_SCHEMA = (
    "additionalItems additionalProperties contains else if items not propertyNames then "
    "unevaluatedItems unevaluatedProperties"
).split()
SCHEMA_LISTS = "allOf anyOf items oneOf prefixItems".split()
SCHEMA_MAPS = "$defs definitions dependencies dependentSchemas patternProperties properties".split()


class Draft(Enum):
    """Whose rules a document follows. A document that does not say follows 2020-12, but may use
    what draft 7 wrote differently (tuples in items, dependencies)."""

    DRAFT_4 = 4
    DRAFT_7 = 7
    DRAFT_2019 = 2019
    DRAFT_2020 = 2020

    @property
    def ref_stands_alone(self) -> bool:
        return self in (Draft.DRAFT_4, Draft.DRAFT_7)


@dataclass(frozen=True, slots=True)
class Place:
    """One sub-schema: where it stands, and against what its references are resolved."""

    number: int
    pointer: str
    schema: dict[str, JsonValue] | bool
    base: str


class Document:
    """A parsed schema with its places."""

    def __init__(self, root: JsonValue) -> None:
        self.root = root
        self.draft = _draft(root)
        self.says_its_draft = isinstance(root, dict) and "$schema" in root
        self._places: list[Place] = []
        self._by_pointer: dict[str, int] = {}
        self._resources: dict[str, str] = {"": ""}  # base address to pointer
        self._anchors: dict[tuple[str, str], str] = {}
        self._dynamic: dict[str, list[str]] = {}
        self._walk(root, "", "")

    def place(self, number: int) -> Place:
        return self._places[number]

    def pointers_with(self, keyword: str) -> list[str]:
        """Where keyword stands, in the order of the document."""
        return [
            place.pointer
            for place in self._places
            if isinstance(place.schema, dict) and keyword in place.schema
        ]

    def at(self, pointer: str) -> Place:
        """The place that stands at a pointer which _walk has seen."""
        return self._places[self._by_pointer[pointer]]

    def child(self, place: Place, *steps: str) -> Place:
        """The sub-schema below a place, by the keys on the way."""
        pointer = place.pointer + "".join("/" + escaped(step) for step in steps)
        number = self._by_pointer.get(pointer)
        return self._places[number] if number is not None else self._late(pointer, place.base)

    def resolve(self, place: Place, reference: str, keyword: str) -> Place:
        """The place a reference leads to. Raises UnsupportedKeyword for one outside."""
        schema = place.schema
        is_named = isinstance(schema, dict) and "$id" in schema and not self.says_its_draft
        if is_named and not reference.startswith("#"):
            raise UnsupportedKeyword(
                "drafts differ about $id beside $ref: name the draft in $schema",
                pointer=place.pointer,
                keyword=keyword,
            )
        address, _, fragment = _joined(place.base, reference).partition("#")
        root = self._resources.get(address)
        if root is None:
            raise UnsupportedKeyword(
                f"{reference!r} leads outside the schema; put it into $defs",
                pointer=place.pointer,
                keyword=keyword,
            )
        fragment = unquote(fragment)
        if not fragment or fragment.startswith("/"):
            pointer: str | None = root + fragment
        else:
            pointer = self._anchors.get((address, fragment))
        if pointer is not None and pointer in self._by_pointer:
            return self.at(pointer)
        if pointer is None or not self._holds(pointer):
            raise InvalidSchema(
                f"{reference!r} leads nowhere", pointer=place.pointer, keyword=keyword
            )
        return self._late(pointer, address)

    def resolve_dynamic(self, place: Place, reference: str) -> Place:
        """As resolve, for $dynamicRef, where only one schema can be meant."""
        found = self.resolve(place, reference, "$dynamicRef")
        name = reference.partition("#")[2]
        if len(self._dynamic.get(name, ())) > 1:
            raise UnsupportedKeyword(
                f"more than one schema has the $dynamicAnchor {name!r}",
                pointer=place.pointer,
                keyword="$dynamicRef",
            )
        return found

    def _late(self, pointer: str, base: str) -> Place:
        """A place under a keyword that holds no schemas by itself, but is referred to."""
        self._walk(self._value(pointer), pointer, base)
        return self.at(pointer)

    def _holds(self, pointer: str) -> bool:
        try:
            self._value(pointer)
        except (KeyError, IndexError, ValueError, TypeError):
            return False
        return True

    def _value(self, pointer: str) -> JsonValue:
        value = self.root
        for step in pointer.split("/")[1:]:
            step = step.replace("~1", "/").replace("~0", "~")
            if isinstance(value, list):
                value = value[int(step)]
            elif isinstance(value, dict):
                value = value[step]
            else:
                raise KeyError(step)
        return value

    def _walk(self, value: JsonValue, pointer: str, base: str) -> None:
        if not isinstance(value, (dict, bool)):
            raise InvalidSchema("a schema is an object, true or false", pointer=pointer)
        if pointer in self._by_pointer:
            return
        if isinstance(value, dict):
            base = self._note_names(value, pointer, base)
        self._by_pointer[pointer] = len(self._places)
        self._places.append(Place(len(self._places), pointer, value, base))
        if isinstance(value, dict):
            for below, child in _children(value):
                self._walk(child, pointer + below, base)

    def _note_names(self, schema: dict[str, JsonValue], pointer: str, base: str) -> str:
        key = "id" if self.draft is Draft.DRAFT_4 else "$id"
        own = schema.get(key)
        if isinstance(own, str) and not (self.draft.ref_stands_alone and "$ref" in schema):
            if own.startswith("#"):
                self._anchors[base, own[1:]] = pointer
            else:
                base = _joined(base, own).partition("#")[0]
                self._resources.setdefault(base, pointer)
                if pointer == "":
                    self._resources[""] = ""
        anchor = schema.get("$anchor")
        if isinstance(anchor, str):
            self._anchors[base, anchor] = pointer
        dynamic = schema.get("$dynamicAnchor")
        if isinstance(dynamic, str):
            self._anchors[base, dynamic] = pointer
            self._dynamic.setdefault(dynamic, []).append(pointer)
        return base


def escaped(step: str) -> str:
    """A key as a step of a JSON pointer."""
    return step.replace("~", "~0").replace("/", "~1")


def _children(schema: dict[str, JsonValue]) -> Iterator[tuple[str, JsonValue]]:
    for key, value in schema.items():
        if key in ONE_SCHEMA and isinstance(value, (dict, bool)):
            yield f"/{key}", value
        elif key in SCHEMA_LISTS and isinstance(value, list):
            for index, child in enumerate(value):
                yield f"/{key}/{index}", child
        elif key in SCHEMA_MAPS and isinstance(value, dict):
            for name, child in value.items():
                if key != "dependencies" or isinstance(child, (dict, bool)):
                    yield f"/{key}/{escaped(name)}", child


def _joined(base: str, reference: str) -> str:
    if reference.startswith("#"):
        return base + reference
    try:
        return reference if urlsplit(reference).scheme else urljoin(base, reference)
    except ValueError:
        return reference


def _draft(root: JsonValue) -> Draft:
    named = root.get("$schema") if isinstance(root, dict) else None
    if not isinstance(named, str):
        return Draft.DRAFT_2020
    if "draft-03" in named:
        raise InvalidSchema("draft 3 is not supported", pointer="", keyword="$schema")
    for mark, draft in (
        ("draft-04", Draft.DRAFT_4),
        ("draft-06", Draft.DRAFT_7),
        ("draft-07", Draft.DRAFT_7),
        ("2019-09", Draft.DRAFT_2019),
    ):
        if mark in named:
            return draft
    return Draft.DRAFT_2020
