"""The table that comes last: a line per figure, a line per kernel for its cases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from .outcome import Outcome, Row
from .parts import PARTS

_PEAK_ROWS = {"bandwidth": ("memory bandwidth", 1e12), "flops": ("bf16 matrix products", 1e12)}
_NAME_WIDTH, _VALUE_WIDTH = 54, 26


def with_shares(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """The outcomes as JSON, each rate with its share of the peak that was measured."""
    parts = []
    for outcome in outcomes:
        fields = asdict(outcome)
        for row, found in zip(outcome.rows, fields["rows"], strict=True):
            found["share"] = share_of_peak(row, outcomes)
        parts.append({**fields, "is_right": outcome.is_right})
    return parts


def share_of_peak(row: Row, outcomes: Sequence[Outcome]) -> float | None:
    """row.rate over the measured peak; None where either is not known."""
    if row.rate is None or row.peak is None:
        return None
    name, unit = _PEAK_ROWS[row.peak]
    for outcome in outcomes:
        for one in outcome.rows:
            if outcome.part == "peaks" and one.name == name and one.value:
                return row.rate / (one.value * unit)
    return None


def table(
    outcomes: Sequence[Outcome],
    parts: Sequence[Mapping[str, Any]],
    facts: Mapping[str, object],
    left_out: Sequence[str],
) -> str:
    """The text to print; parts are with_shares(outcomes)."""
    lines = ["", ", ".join(f"{name} {value}" for name, value in facts.items())]
    for outcome, part in zip(outcomes, parts, strict=True):
        lines += ["", f"{PARTS[outcome.part]} ({outcome.seconds:.0f} s)"]
        shares = [row["share"] for row in part["rows"]]
        ungrouped = [pair for pair in zip(outcome.rows, shares, strict=True) if not pair[0].group]
        lines += [_line(row, share) for row, share in ungrouped]
        for group in dict.fromkeys(row.group for row in outcome.rows if row.group):
            lines += _group_lines(group, [row for row in outcome.rows if row.group == group])
        if outcome.error is not None:
            lines.append(f"  ERROR {outcome.error}")
    if left_out:
        lines += ["", "Left out", *(f"  {line}" for line in left_out)]
    failed = [one.part for one in outcomes if not one.is_right]
    lines += ["", f"FAILED: {', '.join(failed)}" if failed else "every comparison held", ""]
    return "\n".join(lines)


def _line(row: Row, share: float | None) -> str:
    value = "not measured" if row.value is None else f"{row.value:,.4g} {row.unit}"
    words = []
    if share is not None and row.peak is not None:
        words.append(f"{share:.0%} of measured {row.peak}")
    if share is not None and row.share_goal is not None:
        words.append(_verdict(share >= row.share_goal, f"goal {row.share_goal:.0%}"))
    if row.meets_goal is not None:
        words.append(_verdict(row.meets_goal, "goal"))
    if row.is_right is not None:
        words.append("right" if row.is_right else "WRONG")
    if row.note:
        words.append(row.note)
    return f"  {row.name:{_NAME_WIDTH}} {value:>{_VALUE_WIDTH}}  {', '.join(words)}".rstrip()


def _verdict(is_met: bool, goal: str) -> str:
    return f"{goal} met" if is_met else f"{goal} MISSED"


def _group_lines(group: str, rows: Sequence[Row]) -> list[str]:
    wrong = [row for row in rows if row.is_right is False]
    worst = max((row.value for row in rows if row.value is not None), default=0.0)
    value = f"{len(rows) - len(wrong)} of {len(rows)} right"
    lines = [
        f"  {group:{_NAME_WIDTH}} {value:>{_VALUE_WIDTH}}  worst error {worst:.2g} x tolerance"
    ]
    return lines + [f"    WRONG {row.note}" for row in wrong]
