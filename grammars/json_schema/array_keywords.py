"""Keywords about arrays."""

from __future__ import annotations

from .arrays import ANY_ARRAY, Arrays, Contains, simplified
from .documents import Document
from .formulas import ALWAYS, Formula
from .keywords import Keywords
from .places import formula_at

NAMES = frozenset(
    "items prefixItems additionalItems minItems maxItems uniqueItems contains minContains "
    "maxContains".split()
)


def arrays_of(keywords: Keywords, document: Document) -> tuple[Arrays, ...]:
    """Arrays that the keywords allow, unevaluatedItems aside."""
    if not keywords.has_any(NAMES):
        return (ANY_ARRAY,)
    prefix, rest, seen = _items(keywords, document)
    contains, seen_by = _contains(keywords, document)
    unique = keywords.get("uniqueItems")
    if unique is not None and not isinstance(unique, bool):
        raise keywords.invalid("uniqueItems", "must be true or false")
    found = simplified(
        Arrays(
            prefix,
            rest,
            keywords.count("minItems") or 0,
            keywords.count("maxItems"),
            contains,
            bool(unique),
            seen,
            seen_by,
        )
    )
    return () if found is None else (found,)


def _items(
    keywords: Keywords, document: Document
) -> tuple[tuple[Formula, ...], Formula, int | None]:
    """Formulas of the first items and of all others, and how many count as evaluated."""
    place = keywords.place
    items = keywords.get("items")
    tuple_keyword = "items" if isinstance(items, list) else "prefixItems"
    first = keywords.get(tuple_keyword)
    if isinstance(items, list) and "prefixItems" in keywords:
        raise keywords.invalid("items", "must be a schema next to prefixItems")
    prefix: tuple[Formula, ...] = ()
    if first is not None:
        if not isinstance(first, list):
            raise keywords.invalid(tuple_keyword, "must be a list of schemas")
        prefix = tuple(
            formula_at(document, document.child(place, tuple_keyword, str(index)))
            for index in range(len(first))
        )
    rest_keyword = "additionalItems" if isinstance(items, list) else "items"
    if rest_keyword not in keywords:
        return prefix, ALWAYS, len(prefix)
    return prefix, formula_at(document, document.child(place, rest_keyword)), None


def _contains(
    keywords: Keywords, document: Document
) -> tuple[tuple[Contains, ...], tuple[Formula, ...]]:
    low, high = keywords.count("minContains"), keywords.count("maxContains")
    if "contains" not in keywords:
        return (), ()
    wanted = formula_at(document, document.child(keywords.place, "contains"))
    return (Contains(wanted, 0, 1 if low is None else low, high),), (wanted,)
