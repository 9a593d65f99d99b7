"""Typed look-ups in a JSON object whose errors name the file, the field and the value."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ..errors import ModelLoadError

_MOST = 2**31 - 1
_SHOWN_CHARS = 100


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

    def count(
        self, name: str, default: int | None = None, *, least: int = 1, most: int = _MOST
    ) -> int:
        """A whole number from least to most."""
        value = self._value(name, default)
        if not isinstance(value, int) or isinstance(value, bool):
            raise self.error(name, f"it is {shown(value)}; it must be a whole number above 0")
        if not least <= value <= most:
            raise self.error(name, f"it is {shown(value)}; it must be from {least} to {most}")
        return value

    def positive(self, name: str, default: float | None = None) -> float:
        """A finite number above 0."""
        value = self._value(name, default)
        number = as_number(value)
        if number is None or not 0 < number < math.inf:
            raise self.error(name, f"it is {shown(value)}; it must be a finite number above 0")
        return number

    def flag(self, name: str, default: bool) -> bool:
        """true or false."""
        value = self._value(name, default)
        if not isinstance(value, bool):
            raise self.error(name, f"it is {shown(value)}; it must be true or false")
        return value

    def refuse_unless(self, name: str, default: str, *served: str) -> None:
        """Raise if the field holds anything but the served values."""
        value = self._value(name, default)
        if value not in served:
            raise self.error(
                name, f"{shown(value)} is not served; it must be {' or '.join(served)}"
            )

    def _value(self, name: str, default: Any) -> Any:
        value = self.values.get(name)
        if value is not None:
            return value
        if default is None:
            raise self.error(name, "it is missing")
        return default


def as_number(value: Any) -> float | None:
    """Return a JSON number as a float, infinite if it is too large; None for any other value."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def shown(value: Any) -> str:
    """Return value as an error message quotes it: whole only if it is short."""
    try:
        text = repr(value)
    except ValueError:  # Python refuses to write out integers of thousands of digits
        return "a number of thousands of digits"
    return text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + "..."
