"""The keywords of one place, without those that are left out on request."""

from __future__ import annotations

from collections.abc import Iterator, Set
from decimal import Decimal

from . import limits
from .documents import Place
from .errors import InvalidSchema, UnsupportedKeyword
from .schema_text import JsonValue


class Keywords:
    """A view of a place's schema object."""

    def __init__(self, place: Place, dropped: Set[tuple[str, str]]) -> None:
        assert isinstance(place.schema, dict)
        self.place = place
        self._values = {
            name: value
            for name, value in place.schema.items()
            if not dropped or (place.pointer, name) not in dropped
        }

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def get(self, name: str) -> JsonValue:
        """The keyword's value; None if it is absent (null is the value of const only)."""
        return self._values.get(name)

    def remove(self, name: str) -> None:
        self._values.pop(name, None)

    def has_any(self, names: Set[str]) -> bool:
        return not names.isdisjoint(self._values)

    def count(self, name: str) -> int | None:
        """A keyword that takes a whole number from 0 on; None also for a maximum out of reach."""
        value = self._values.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, Decimal)) or value != int(value):
            raise self.invalid(name, "must be a whole number")
        if value < 0:
            raise self.invalid(name, "must not be negative")
        if value > limits.MAX_REPEATS and not name.startswith("max"):
            raise self.unsupported(name, f"{value} is above the limit of {limits.MAX_REPEATS}")
        return None if value > limits.MAX_REACHED else int(value)

    def mapping(self, name: str) -> dict[str, JsonValue]:
        value = self._values.get(name, {})
        if not isinstance(value, dict):
            raise self.invalid(name, "must be an object")
        return value

    def schema_list(self, name: str) -> list[JsonValue]:
        value = self._values.get(name)
        if not isinstance(value, list) or not value:
            raise self.invalid(name, "must be a list of schemas, and not empty")
        return value

    def names(self, name: str, value: JsonValue) -> list[str]:
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.invalid(name, "must be a list of strings")
        return [item for item in value if isinstance(item, str)]

    def invalid(self, keyword: str, reason: str) -> InvalidSchema:
        return InvalidSchema(f"{keyword} {reason}", pointer=self.place.pointer, keyword=keyword)

    def unsupported(self, keyword: str, reason: str) -> UnsupportedKeyword:
        return UnsupportedKeyword(reason, pointer=self.place.pointer, keyword=keyword)
