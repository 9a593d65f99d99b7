"""Sets of numbers: what the numeric keywords of one case allow, closed under and, or, not."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import ceil, floor, lcm

MAX_LISTED = 1_000  # a range with fewer multiples than this is written out value by value


@dataclass(frozen=True, slots=True)
class Numbers:
    """Numbers within bounds that are multiples of some numbers, not of others.

    values: if not None, exactly these numbers, and the other fields say nothing.
    """

    low: Fraction | None = None
    low_open: bool = False
    high: Fraction | None = None
    high_open: bool = False
    multiples: frozenset[Fraction] = frozenset()  # 1 in here means integers
    not_multiples: frozenset[Fraction] = frozenset()
    excluded: frozenset[Fraction] = frozenset()
    values: tuple[Fraction, ...] | None = None

    def holds(self, value: Fraction) -> bool:
        if self.values is not None:
            return value in self.values
        if self.low is not None and (value < self.low or (self.low_open and value == self.low)):
            return False
        if self.high is not None and (value > self.high or (self.high_open and value == self.high)):
            return False
        return (
            all((value / m).denominator == 1 for m in self.multiples)
            and all((value / m).denominator != 1 for m in self.not_multiples)
            and value not in self.excluded
        )

    @property
    def step(self) -> Fraction | None:
        """The least number of which all are multiples."""
        if not self.multiples:
            return None
        common = lcm(*(m.denominator for m in self.multiples))
        scaled = [m.numerator * (common // m.denominator) for m in self.multiples]
        return Fraction(lcm(*scaled), common)


ANY_NUMBER = Numbers()
INTEGERS = Numbers(multiples=frozenset((Fraction(1),)))


def just(values: tuple[Fraction, ...]) -> Numbers:
    return Numbers(values=tuple(dict.fromkeys(values)))


def meet(left: Numbers, right: Numbers) -> Numbers | None:
    """The numbers in both; None if there are none."""
    for one, other in ((left, right), (right, left)):
        if one.values is not None:
            kept = tuple(value for value in one.values if other.holds(value))
            return Numbers(values=kept) if kept else None
    low, low_open = _tighter(left.low, left.low_open, right.low, right.low_open, upper=False)
    high, high_open = _tighter(left.high, left.high_open, right.high, right.high_open, upper=True)
    return simplified(
        Numbers(
            low,
            low_open,
            high,
            high_open,
            left.multiples | right.multiples,
            left.not_multiples | right.not_multiples,
            left.excluded | right.excluded,
        )
    )


def simplified(numbers: Numbers) -> Numbers | None:
    """The same set, written out if it is small; None if it is empty."""
    if numbers.values is not None:
        return numbers if numbers.values else None
    if numbers.low is not None and numbers.high is not None:
        if numbers.low > numbers.high:
            return None
        if numbers.low == numbers.high:
            return just((numbers.low,)) if numbers.holds(numbers.low) else None
    step = numbers.step
    if step is None:
        return numbers
    if any((step / m).denominator == 1 for m in numbers.not_multiples):
        return None
    if numbers.low is not None and numbers.high is not None:
        first, last = ceil(numbers.low / step), floor(numbers.high / step)
        if last - first < MAX_LISTED:
            listed = (step * index for index in range(first, last + 1))
            kept = tuple(value for value in listed if numbers.holds(value))
            return Numbers(values=kept) if kept else None
    return numbers


def complement(numbers: Numbers) -> list[Numbers]:
    """All other numbers, as cases."""
    if numbers.values is not None:
        return [Numbers(excluded=frozenset(numbers.values))]
    cases = [Numbers(multiples=frozenset((m,))) for m in sorted(numbers.not_multiples)]
    if numbers.low is not None:
        cases.append(Numbers(high=numbers.low, high_open=not numbers.low_open))
    if numbers.high is not None:
        cases.append(Numbers(low=numbers.high, low_open=not numbers.high_open))
    cases.extend(Numbers(not_multiples=frozenset((m,))) for m in sorted(numbers.multiples))
    if numbers.excluded:
        cases.append(Numbers(values=tuple(sorted(numbers.excluded))))
    return cases


def _tighter(
    a: Fraction | None, a_open: bool, b: Fraction | None, b_open: bool, *, upper: bool
) -> tuple[Fraction | None, bool]:
    if a is None or b is None:
        return (b, b_open) if a is None else (a, a_open)
    if a == b:
        return a, a_open or b_open
    return (a, a_open) if (a < b) == upper else (b, b_open)
