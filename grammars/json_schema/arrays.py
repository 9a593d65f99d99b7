"""Sets of arrays: one case of what the array keywords allow."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..matcher import GrammarError
from .formulas import ALWAYS, NEVER, Formula, conjunction, negation


@dataclass(frozen=True, slots=True)
class Contains:
    """From the item `start` on, at least low and at most high items satisfy formula."""

    formula: Formula
    start: int
    low: int
    high: int | None


@dataclass(frozen=True, slots=True)
class Arrays:
    """Arrays whose items, count and distinctness are as given.

    seen_items: items that count as evaluated, from the first on (None: all); seen_by: items that
    satisfy one of these count too. Both are used only under unevaluatedItems.
    """

    prefix: tuple[Formula, ...] = ()
    rest: Formula = ALWAYS
    low: int = 0
    high: int | None = None
    contains: tuple[Contains, ...] = ()
    is_unique: bool = False
    seen_items: int | None = 0
    seen_by: tuple[Formula, ...] = ()

    def item(self, index: int) -> Formula:
        return self.prefix[index] if index < len(self.prefix) else self.rest


ANY_ARRAY = Arrays()


def simplified(arrays: Arrays) -> Arrays | None:
    """The same set in its plainest form; None if it is plainly empty."""
    prefix, low, high = arrays.prefix, arrays.low, arrays.high
    if NEVER in prefix:
        high = _least(high, prefix.index(NEVER))
    if arrays.rest == NEVER:
        high = _least(high, len(prefix))
    kept = []
    for c in arrays.contains:
        if c.low == 0 and c.high is None:
            continue
        if c.formula == ALWAYS:
            low = max(low, c.start + c.low if c.low else 0)
            high = high if c.high is None else _least(high, c.start + c.high)
        elif c.formula != NEVER:
            low = max(low, c.start + c.low if c.low else 0)
            if c.high is not None and c.high < c.low:
                return None
            kept.append(c)
        elif c.low > 0:
            return None
    if high is not None:
        prefix = prefix[:high]
        if low > high:
            return None
    while prefix and prefix[-1] == arrays.rest:
        prefix = prefix[:-1]
    return replace(
        arrays,
        prefix=prefix,
        low=low,
        high=high,
        contains=tuple(dict.fromkeys(kept)),
        is_unique=arrays.is_unique and (high is None or high > 1),
    )


def meet(left: Arrays, right: Arrays) -> Arrays | None:
    """The arrays in both; None if there are plainly none."""
    count = max(len(left.prefix), len(right.prefix))
    highs = [high for high in (left.high, right.high) if high is not None]
    seen = (
        None
        if left.seen_items is None or right.seen_items is None
        else max(left.seen_items, right.seen_items)
    )
    return simplified(
        Arrays(
            tuple(conjunction((left.item(i), right.item(i))) for i in range(count)),
            conjunction((left.rest, right.rest)),
            max(left.low, right.low),
            min(highs) if highs else None,
            left.contains + right.contains,
            left.is_unique or right.is_unique,
            seen,
            left.seen_by + right.seen_by,
        )
    )


def complement(arrays: Arrays) -> list[Arrays]:
    """All other arrays, as cases. Raises GrammarError where there is no way to say it."""
    if arrays.is_unique:
        raise GrammarError("the opposite of uniqueItems cannot be enforced")
    cases = []
    if arrays.low > 0:
        cases.append(Arrays(high=arrays.low - 1))
    if arrays.high is not None:
        cases.append(Arrays(low=arrays.high + 1))
    for index, formula in enumerate(arrays.prefix):
        if formula != ALWAYS:
            before = (ALWAYS,) * index
            cases.append(Arrays(prefix=(*before, negation(formula)), low=index + 1))
    if arrays.rest != ALWAYS:
        wrong = Contains(negation(arrays.rest), len(arrays.prefix), 1, None)
        cases.append(Arrays(contains=(wrong,)))
    for c in arrays.contains:
        if c.low > 0:
            cases.append(Arrays(contains=(replace(c, low=0, high=c.low - 1),)))
        if c.high is not None:
            cases.append(Arrays(contains=(replace(c, low=c.high + 1, high=None),)))
    return [case for case in map(simplified, cases) if case is not None]


def _least(high: int | None, other: int) -> int:
    return other if high is None else min(high, other)
