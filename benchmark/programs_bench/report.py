"""The results as a table and as JSON, and back from JSON, so that runs can be put together."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from .contestants import NO_TREE, TREE
from .rounds import Result
from .workloads import WORKLOADS

Ratios = dict[str, float]


def as_json(results: Sequence[Result]) -> dict[str, Any]:
    """All rates by workload and contestant, the ratios, and their geometric means."""
    found: dict[str, Any] = {"programs_per_second": {}, "times_faster": {}, "geometric_mean": {}}
    for one in results:
        found["programs_per_second"].setdefault(one.workload.name, {})[one.contestant] = {
            "median": one.median,
            "least": min(one.rates.values()),
            "greatest": max(one.rates.values()),
            "rounds": one.rates,
        }
    for other in _others(results):
        ratios = _ratios(results, other)
        if ratios:
            found["times_faster"][other] = ratios
            found["geometric_mean"][other] = _means(ratios)
    return found


def put_together(reports: Iterable[Any]) -> list[Result]:
    """Results from what as_json made of several runs, parsed; raises ValueError for anything else.

    A round that is in two of them counts as it was in the later one.
    """
    found: dict[tuple[str, str], Result] = {}
    for report in reports:
        if not isinstance(report, dict) or "programs_per_second" not in report:
            raise ValueError("what --json printed is expected, with programs_per_second")
        if report.get("quick"):
            raise ValueError("a run with --quick has no figures")
        for name, contestants in report["programs_per_second"].items():
            if name not in WORKLOADS:
                raise ValueError(f"there is no program {name!r}; there are {', '.join(WORKLOADS)}")
            for contestant, rates in contestants.items():
                result = found.setdefault((name, contestant), Result(WORKLOADS[name], contestant))
                result.rates.update({int(number): rate for number, rate in rates["rounds"].items()})
    order = {name: place for place, name in enumerate(WORKLOADS)}
    return sorted(found.values(), key=lambda one: order[one.workload.name])


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
    means = {other: _means(_ratios(results, other)) for other in others}
    for kind, label in _MEANS.items():
        row = [f"geometric mean {label}", ""]
        for other in others:
            mean = means[other].get(kind)
            row += ["", f"{mean['value']:.2f} of {mean['programs']}" if mean else "-"]
        rows.append(row)
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def progress_line(result: Result) -> str:
    """One result while others are still to come."""
    return f"{result.workload.name}, {result.contestant}: {_cell(result)} programs/s"


_MEANS = {"paper": "over the paper's set", "all": "over all"}


def _means(ratios: Ratios) -> dict[str, dict[str, float]]:
    of_paper = {name: one for name, one in ratios.items() if WORKLOADS[name].is_of_paper}
    return {
        kind: {"value": statistics.geometric_mean(some.values()), "programs": len(some)}
        for kind, some in (("paper", of_paper), ("all", ratios))
        if some
    }


def _others(results: Sequence[Result]) -> list[str]:
    names = dict.fromkeys(one.contestant for one in results if one.contestant != TREE)
    return sorted(names, key=lambda name: name != NO_TREE)


def _ratios(results: Sequence[Result], other: str) -> Ratios:
    """By workload: the median over the rounds of both of how many times faster the tree was."""
    rates = {(one.workload.name, one.contestant): one.rates for one in results}
    found = {}
    for name in dict.fromkeys(one.workload.name for one in results):
        tree, its = rates.get((name, TREE), {}), rates.get((name, other), {})
        both = [tree[number] / rate for number, rate in its.items() if number in tree]
        if both:
            found[name] = statistics.median(both)
    return found


def _cell(result: Result | None) -> str:
    if result is None:
        return "-"
    rates = result.rates.values()
    return f"{_figure(result.median)} [{_figure(min(rates))}-{_figure(max(rates))}]"


def _figure(rate: float) -> str:
    return f"{rate:.2f}" if rate >= 1 else f"{rate:.3f}"
