"""Sets of Unicode characters as sorted, disjoint ranges.

Surrogates are left out everywhere: they cannot be written in UTF-8.
"""

from __future__ import annotations

import unicodedata
from bisect import bisect_right
from collections.abc import Iterable
from functools import lru_cache
from typing import TypeAlias

Charset: TypeAlias = tuple[tuple[int, int], ...]
"""Inclusive ranges, ascending, neither touching nor overlapping."""

MAX_CODE_POINT = 0x10FFFF
ANY: Charset = ((0, 0xD7FF), (0xE000, MAX_CODE_POINT))
DIGITS: Charset = ((0x30, 0x39),)
WORD: Charset = ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))
# What ECMA-262 calls WhiteSpace and LineTerminator.
SPACE: Charset = (
    (0x09, 0x0D),
    (0x20, 0x20),
    (0xA0, 0xA0),
    (0x1680, 0x1680),
    (0x2000, 0x200A),
    (0x2028, 0x2029),
    (0x202F, 0x202F),
    (0x205F, 0x205F),
    (0x3000, 0x3000),
    (0xFEFF, 0xFEFF),
)
LINE_ENDS: Charset = ((0x0A, 0x0A), (0x0D, 0x0D), (0x2028, 0x2029))


def union(*sets: Iterable[tuple[int, int]]) -> Charset:
    """All characters of all sets; the ranges may come in any order."""
    merged: list[tuple[int, int]] = []
    for low, high in sorted(r for ranges in sets for r in ranges):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    return _without_surrogates(merged)


def inverse(charset: Charset) -> Charset:
    """All characters that are not in the set."""
    gaps: list[tuple[int, int]] = []
    start = 0
    for low, high in charset:
        if low > start:
            gaps.append((start, low - 1))
        start = high + 1
    if start <= MAX_CODE_POINT:
        gaps.append((start, MAX_CODE_POINT))
    return _without_surrogates(gaps)


def intersection(left: Charset, right: Charset) -> Charset:
    """The characters in both."""
    both: list[tuple[int, int]] = []
    i = j = 0
    while i < len(left) and j < len(right):
        low, high = max(left[i][0], right[j][0]), min(left[i][1], right[j][1])
        if low <= high:
            both.append((low, high))
        if left[i][1] < right[j][1]:
            i += 1
        else:
            j += 1
    return tuple(both)


def contains(charset: Charset, code_point: int) -> bool:
    if len(charset) < 8:
        return any(low <= code_point <= high for low, high in charset)
    index = bisect_right(charset, (code_point, MAX_CODE_POINT))
    return index > 0 and charset[index - 1][1] >= code_point


@lru_cache(maxsize=64)
def of_category(name: str) -> Charset | None:
    """Characters of a Unicode general category such as L or Lu; None if there is none so named."""
    points = [
        (point, point)
        for point in range(MAX_CODE_POINT + 1)
        if unicodedata.category(chr(point)).startswith(name)
    ]
    return union(points) if points and len(name) <= 2 else None


def _without_surrogates(ranges: Iterable[tuple[int, int]]) -> Charset:
    kept: list[tuple[int, int]] = []
    for low, high in ranges:
        if low < 0xD800:
            kept.append((low, min(high, 0xD7FF)))
        if high > 0xDFFF:
            kept.append((max(low, 0xE000), high))
    return tuple(kept)
