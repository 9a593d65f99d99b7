"""Ranges of whole numbers as short regular expressions: 0 to 255 in place of 256 alternatives."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction

MIN_IN_A_ROW = 10  # fewer are as short one by one


def integers_in_a_row(values: Sequence[Fraction]) -> str | None:
    """An expression of exactly the values; None unless they are many whole numbers in a row."""
    if len(values) < MIN_IN_A_ROW or any(value.denominator != 1 for value in values):
        return None
    low, high = int(min(values)), int(max(values))
    if high - low + 1 != len(set(values)):
        return None
    options = []
    if low < 0:
        options.append(f"-(?:{'|'.join(_ranges(max(1, -high), -low))})")
    if high >= 0:
        options.extend(_ranges(max(0, low), high))
    return "|".join(options)


def _ranges(low: int, high: int) -> Iterator[str]:
    """Expressions whose numbers are those from low to high, 0 <= low <= high.

    Each is some first digits, a range of the next, and any digits after it.
    """
    while low <= high:
        # The largest block that begins at low and ends before high: 40 to 79, 100 to 199 ...
        size = 1
        while low % (size * 10) == 0 and low + size * 10 - 1 <= high and low >= size * 10:
            size *= 10
        digit = low // size % 10
        last = min(9, digit + (high - low + 1) // size - 1)
        first_digits = str(low // size)[:-1]
        chosen = str(digit) if last == digit else f"[{digit}-{last}]"
        yield f"{first_digits}{chosen}{_any_digits(len(str(size)) - 1)}"
        low += (last - digit + 1) * size


def _any_digits(count: int) -> str:
    return {0: "", 1: "[0-9]"}.get(count, f"[0-9]{{{count}}}")
