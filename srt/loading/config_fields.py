"""Typed look-ups in a JSON object whose errors name the file, the field and the value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import ModelLoadError


class Fields:
    """A JSON object and where it came from. A field that is null counts as absent."""

    def __init__(self, values: Mapping[str, Any], source: str) -> None:
        self.values = values
        self.source = source

    def get(self, name: str) -> Any:
        """The value as it stands, or None."""
        return self.values.get(name)

    def error(self, name: str, problem: str) -> ModelLoadError:
        """An error about one field, ready to be raised."""
        return ModelLoadError(f"{self.source}: field {name}: {problem}")

    def count(self, name: str, default: int | None = None) -> int:
        """A whole number of at least 1."""
        value = self._value(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise self.error(name, f"it is {value!r}; it must be a whole number above 0")
        return value

    def positive(self, name: str, default: float | None = None) -> float:
        """A number above 0."""
        value = self._value(name, default)
        if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0:
            raise self.error(name, f"it is {value!r}; it must be a number above 0")
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        """true or false."""
        value = self._value(name, default)
        if not isinstance(value, bool):
            raise self.error(name, f"it is {value!r}; it must be true or false")
        return value

    def refuse_unless(self, name: str, default: str, *served: str) -> None:
        """Raise if the field holds anything but the served values."""
        value = self._value(name, default)
        if value not in served:
            raise self.error(name, f"{value!r} is not served; it must be {' or '.join(served)}")

    def _value(self, name: str, default: Any) -> Any:
        value = self.values.get(name)
        if value is not None:
            return value
        if default is None:
            raise self.error(name, "it is missing")
        return default
