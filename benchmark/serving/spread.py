"""Medians with their range over the rounds, and ratios between two of them."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from .records import Record


@dataclass(frozen=True, slots=True)
class Spread:
    """Median, least and greatest of num_rounds values."""

    median: float
    low: float
    high: float
    num_rounds: int

    def __str__(self) -> str:
        if self.num_rounds == 1:
            return f"{_short(self.median)} (n=1)"
        return f"{_short(self.median)} [{_short(self.low)}-{_short(self.high)}]"


@dataclass(frozen=True, slots=True)
class Ratio:
    """How many times better one spread is: of the medians, and at worst and at best."""

    median: float
    worst: float
    best: float

    def __str__(self) -> str:
        return f"{self.median:.2f} [{self.worst:.2f}-{self.best:.2f}]"


def spread_of(values: Sequence[float]) -> Spread | None:
    """Return the spread of values, None if there are none."""
    if not values:
        return None
    return Spread(statistics.median(values), min(values), max(values), len(values))


def spread_of_figure(
    records: Sequence[Record], contestant: str, case: str, figure: str
) -> Spread | None:
    """Return a figure's spread over the rounds that went without a problem."""
    return spread_of(
        [
            one.figures[figure]
            for one in records
            if one.contestant == contestant
            and one.case == case
            and one.problem is None
            and figure in one.figures
        ]
    )


def ratio_of(ours: Spread, theirs: Spread, *, lower_is_better: bool) -> Ratio:
    """Return how many times better ours is; the range pairs worst with best rounds."""
    if lower_is_better:
        return Ratio(theirs.median / ours.median, theirs.low / ours.high, theirs.high / ours.low)
    return Ratio(ours.median / theirs.median, ours.low / theirs.high, ours.high / theirs.low)


def _short(value: float) -> str:
    """Three significant digits, without an exponent."""
    if abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"
