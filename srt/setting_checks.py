"""Checks of single settings: type, range, JSON. Errors name the flag, the value and the limit."""

from __future__ import annotations

import json
from typing import Any

from .errors import ConfigError


def option(name: str) -> str:
    """Return the flag of the field name."""
    return "--" + name.replace("_", "-")


def check_type(name: str, value: Any, annotation: str) -> None:
    """Raise ConfigError unless value is of the type that annotation ("int | None") spells."""
    allowed: dict[str, type | tuple[type, ...]] = {
        "int": int,
        "float": (int, float),
        "str": str,
        "bool": bool,
    }
    parts = annotation.split(" | ")
    if value is None and "None" in parts:
        return
    wanted = allowed[parts[0]]
    if not isinstance(value, wanted) or (isinstance(value, bool) and parts[0] != "bool"):
        raise ConfigError(f"{option(name)} is {value!r}; it must be of type {annotation}")
    if isinstance(value, str) and not _is_plain_text(value):
        raise ConfigError(f"{option(name)} is {value!r}; it must be valid UTF-8 without NUL")


def check_range(
    name: str, value: float | None, low: float, high: float, *, is_low_open: bool = False
) -> None:
    """Raise ConfigError unless value is None or from low to high; NaN never is."""
    if value is None or (low <= value <= high and not (is_low_open and value == low)):
        return
    bound = f"above {low} and at most {high}" if is_low_open else f"from {low} to {high}"
    if value < low:  # then the other limit is of no interest
        bound = f"above {low}" if is_low_open else f"at least {low}"
    raise ConfigError(f"{option(name)} is {_shown(value)}; it must be {bound}")


def json_object(name: str, text: str) -> dict[str, Any]:
    """Return text as a JSON object; raises ConfigError."""
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{option(name)} is not JSON: {error}") from None
    if not isinstance(parsed, dict):
        raise ConfigError(f"{option(name)} must be a JSON object, not {type(parsed).__name__}")
    return parsed


def _is_plain_text(text: str) -> bool:
    try:
        return b"\0" not in text.encode()
    except UnicodeEncodeError:
        return False


def _shown(value: float) -> str:
    # Python refuses to write out integers of thousands of digits.
    return f"{value}" if not isinstance(value, int) or value.bit_length() < 512 else "too large"
