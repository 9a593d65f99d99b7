"""The results as a table and as JSON."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from .contestants import NO_TREE, TREE
from .rounds import Result


def as_json(results: Sequence[Result]) -> dict[str, Any]:
    """All rates by workload and contestant, the ratios, and their geometric means."""
    found: dict[str, Any] = {"programs_per_second": {}, "times_faster": {}, "geometric_mean": {}}
    for one in results:
        found["programs_per_second"].setdefault(one.workload.name, {})[one.contestant] = {
            "median": one.median,
            "least": min(one.rates),
            "greatest": max(one.rates),
            "rounds": one.rates,
        }
    for other in _others(results):
        ratios = _ratios(results, other)
        if ratios:
            found["times_faster"][other] = ratios
            found["geometric_mean"][other] = statistics.geometric_mean(ratios.values())
    return found


def as_table(results: Sequence[Result]) -> str:
    """A Markdown table: programs per second, and how many times faster the tree is."""
    others = _others(results)
    names = list(dict.fromkeys(one.workload.name for one in results))
    heads = ["program, at once", TREE]
    heads += [cell for other in others for cell in (other, "times")]
    rows = [heads, ["---"] * len(heads)]
    for name in names:
        mine = {one.contestant: one for one in results if one.workload.name == name}
        row = [f"{name}, {next(iter(mine.values())).workload.num_programs}", _cell(mine.get(TREE))]
        for other in others:
            ratio = _ratios(results, other).get(name)
            row += [_cell(mine.get(other)), "-" if ratio is None else f"{ratio:.2f}"]
        rows.append(row)
    means = ["geometric mean", ""]
    for other in others:
        ratios = _ratios(results, other)
        mean = f"{statistics.geometric_mean(ratios.values()):.2f}" if ratios else "-"
        means += ["", f"{mean} of {len(ratios)}"]
    return "\n".join("| " + " | ".join(row) + " |" for row in [*rows, means])


def progress_line(result: Result) -> str:
    """One result while others are still to come."""
    return f"{result.workload.name}, {result.contestant}: {_cell(result)} programs/s"


def _others(results: Sequence[Result]) -> list[str]:
    names = dict.fromkeys(one.contestant for one in results if one.contestant != TREE)
    return sorted(names, key=lambda name: name != NO_TREE)


def _ratios(results: Sequence[Result], other: str) -> dict[str, float]:
    """By workload: the median over the rounds of how many times faster the tree was."""
    rates = {(one.workload.name, one.contestant): one.rates for one in results}
    return {
        name: statistics.median(
            a / b for a, b in zip(rates[name, TREE], rates[name, other], strict=True)
        )
        for name in dict.fromkeys(one.workload.name for one in results)
        if (name, other) in rates and (name, TREE) in rates
    }


def _cell(result: Result | None) -> str:
    if result is None:
        return "-"
    return f"{result.median:.2f} [{min(result.rates):.2f}-{max(result.rates):.2f}]"
