"""A measured figure with what is to be reached, and how a part's figures are kept together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

_MARKS = {"p50": 50.0, "p90": 90.0, "p99": 99.0, "max": 100.0}


@dataclass(frozen=True, slots=True)
class Figure:
    """One number. at_most or at_least is its reach, None where it only explains another."""

    name: str
    value: float
    unit: str
    at_most: float | None = None
    at_least: float | None = None

    @property
    def is_reached(self) -> bool | None:
        """Whether value is within the reach; None if there is none."""
        if self.at_most is not None:
            return self.value <= self.at_most
        return None if self.at_least is None else self.value >= self.at_least

    @property
    def reach(self) -> str:
        """The reach as text, "" if there is none."""
        if self.at_most is not None:
            return f"<= {self.at_most:g}"
        return "" if self.at_least is None else f">= {self.at_least:g}"

    def as_json(self) -> dict[str, object]:
        """The figure for --json."""
        found: dict[str, object] = {"value": round(self.value, 4), "unit": self.unit}
        if self.is_reached is not None:
            found |= {"reach": self.reach, "reached": self.is_reached}
        return found


@dataclass(slots=True)
class Section:
    """The figures of one part. about says on what they were measured."""

    name: str
    about: str
    figures: list[Figure] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(
        self,
        name: str,
        value: float,
        unit: str,
        *,
        at_most: float | None = None,
        at_least: float | None = None,
    ) -> None:
        """Append one figure."""
        self.figures.append(Figure(name, float(value), unit, at_most, at_least))

    def add_spread(
        self,
        name: str,
        values: Sequence[float],
        unit: str,
        at_most: Mapping[str, float] | None = None,
    ) -> None:
        """Append p50, p90, p99 and the maximum; at_most gives the reach of some of them."""
        for mark, share in _MARKS.items():
            value = percentile(values, share)
            self.add(f"{name} {mark}", value, unit, at_most=(at_most or {}).get(mark))

    def as_json(self) -> dict[str, object]:
        """The section for --json."""
        figures = {figure.name: figure.as_json() for figure in self.figures}
        return {"about": self.about, "figures": figures, "notes": self.notes}

    def as_text(self) -> str:
        """The section as a table."""
        lines = [f"== {self.name}: {self.about}"]
        for one in self.figures:
            verdict = "" if one.is_reached is None else ("reached" if one.is_reached else "MISSED")
            value = f"{one.value:,.4g}" if abs(one.value) < 1000 else f"{one.value:,.0f}"
            lines.append(f"{one.name:56}{value:>12} {one.unit:10}{one.reach:>10}  {verdict}")
        return "\n".join([*lines, *(f"  {note}" for note in self.notes)])


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which share per cent of values lie; 0 if there are none."""
    return float(np.percentile(values, share)) if len(values) else 0.0
