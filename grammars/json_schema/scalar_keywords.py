"""Keywords about numbers and strings."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from fractions import Fraction

from ..matcher import GrammarError
from . import formats
from .keywords import Keywords
from .numbers import ANY_NUMBER, Numbers, simplified
from .regex_ast import ALL, Regex, both, length
from .regex_parser import parse_pattern

NUMBER_NAMES = frozenset("minimum maximum exclusiveMinimum exclusiveMaximum multipleOf".split())
STRING_NAMES = frozenset("minLength maxLength pattern format".split())


def numbers_of(keywords: Keywords) -> tuple[Numbers, ...]:
    """Numbers that minimum, maximum, exclusive* and multipleOf allow."""
    low, low_open = _bound(keywords, "minimum", "exclusiveMinimum", upper=False)
    high, high_open = _bound(keywords, "maximum", "exclusiveMaximum", upper=True)
    found = Numbers(low, low_open, high, high_open)
    step = _number(keywords, "multipleOf")
    if step is not None:
        if step <= 0:
            raise keywords.invalid("multipleOf", "must be above 0")
        found = replace(found, multiples=frozenset((step,)))
    plain = simplified(found) if found != ANY_NUMBER else found
    return () if plain is None else (plain,)


def _bound(
    keywords: Keywords, inclusive: str, exclusive: str, *, upper: bool
) -> tuple[Fraction | None, bool]:
    bound = _number(keywords, inclusive)
    other = keywords.get(exclusive)
    if isinstance(other, bool):  # draft 4: a mark on the other keyword
        return bound, other and bound is not None
    limit = _number(keywords, exclusive)
    if limit is None or (bound is not None and (bound < limit if upper else bound > limit)):
        return bound, False
    return limit, True


def _number(keywords: Keywords, name: str) -> Fraction | None:
    value = keywords.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, Decimal)):
        raise keywords.invalid(name, "must be a number")
    return Fraction(value)


def strings_of(keywords: Keywords) -> Regex:
    """Strings that minLength, maxLength, pattern and format allow."""
    if not keywords.has_any(STRING_NAMES):
        return ALL
    parts: list[Regex] = [ALL]
    low, high = keywords.count("minLength") or 0, keywords.count("maxLength")
    if low or high is not None:
        parts.append(length(low, high))
    pattern = keywords.get("pattern")
    if pattern is not None:
        if not isinstance(pattern, str):
            raise keywords.invalid("pattern", "must be a string")
        parts.append(pattern_of(keywords, "pattern", pattern))
    name = keywords.get("format")
    if name is not None:
        if not isinstance(name, str):
            raise keywords.invalid("format", "must be a string")
        parts.append(_format(keywords, name))
    return both(parts)


def pattern_of(keywords: Keywords, name: str, pattern: str) -> Regex:
    try:
        return parse_pattern(pattern)
    except GrammarError as error:
        raise keywords.unsupported(name, error.reason) from None


def _format(keywords: Keywords, name: str) -> Regex:
    if name in formats.NOT_ABOUT_STRINGS:
        return ALL
    known = formats.language(name)
    if known is None:
        raise keywords.unsupported("format", f"the format {name!r} cannot be enforced")
    return known
