"""Markdown tables of a run: who measured what, the share of the machine's limits, the goals."""

from __future__ import annotations

from collections.abc import Sequence

from .cases import CASE_TITLES
from .goals import BOUNDS, Bound, standings
from .records import MACHINE, Record
from .spread import spread_of_figure

# Case, figure, heading. Each is the case's main figure, in the order of the cases.
_MAIN_FIGURES = (
    ("A", "ms_per_token", "A ms/token"),
    ("B", "ttft_ms", "B TTFT ms"),
    ("B", "prompt_tok_s", "B prompt tok/s"),
    ("C", "output_tok_s", "C output tok/s"),
    ("D", "wall_s", "D wall s"),
    ("E", "requests_s", "E req/s"),
    ("F", "first_answer_s", "F first answer s"),
    ("F", "peak_pss_mib", "F peak PSS MiB"),
)
_YES_OR_NO = {True: "yes", False: "no", None: "-"}
_DETAILS = (
    ("ttft_ms", "TTFT ms"),
    ("ms_per_token", "ms/token"),
    ("output_tok_s", "output tok/s"),
    ("wall_s", "wall s"),
    ("cached_tokens", "cached tokens"),
    ("valid_share", "valid"),
    ("limit_share", "share of limit"),
    ("peer_cpu_s", "CPU s"),
    ("client_cpu_s", "client CPU s"),
    ("other_cpu_s", "others' CPU s"),
    ("pss_mib", "PSS MiB"),
)


def render_tables(records: Sequence[Record], weights: dict[str, str]) -> str:
    """Return all tables. weights: contestant name -> form of its weights, in the rows' order."""
    records = [*records, *peak_memory(records)]
    seen = {one.contestant for one in records}
    names = [name for name in weights if name in seen]
    parts = [main_table(records, names), limits_table(records)]
    parts += [detail_table(records, names, case) for case in "ABCDE"]
    parts += [problem_list(records)]
    if len(names) > 1:
        parts.insert(1, goal_table(records, weights))
    return "\n\n".join(part for part in parts if part) + "\n"


def peak_memory(records: Sequence[Record]) -> list[Record]:
    """Return one record of case F for each start: the greatest PSS after any of its cases."""
    peaks: dict[tuple[str, int], float] = {}
    for one in records:
        if "pss_mib" in one.figures:
            key = one.contestant, one.round
            peaks[key] = max(peaks.get(key, 0.0), one.figures["pss_mib"])
    return [
        Record(name, round_number, "F", {"peak_pss_mib": peak})
        for (name, round_number), peak in peaks.items()
    ]


def main_table(records: Sequence[Record], names: Sequence[str]) -> str:
    """Return one row for each contestant with the main figure of each case."""
    measured = [
        entry
        for entry in _MAIN_FIGURES
        if any(spread_of_figure(records, name, entry[0], entry[1]) for name in names)
    ]
    rows = [
        [name, *(_cell(records, name, case, figure) for case, figure, _ in measured)]
        for name in names
    ]
    return "### Cases\n\n" + _markdown(["contestant", *(entry[2] for entry in measured)], rows)


def goal_table(records: Sequence[Record], weights: dict[str, str]) -> str:
    """Return ours against the best rival of each goal."""
    rows = []
    for one in standings(records, weights):
        rows.append(
            [
                f"{one.goal.case} {one.goal.title}",
                f"{one.ours} {one.goal.unit}" if one.ours else "not measured",
                f"{one.rival}: {one.theirs}" if one.theirs else "not measured",
                str(one.ratio) if one.ratio else "-",
                f"{one.goal.wanted:g}",
                _YES_OR_NO[one.is_reached],
            ]
        )
    rows += [_bound_row(records, bound) for bound in BOUNDS]
    heading = ["goal", "ours", "best rival", "times better [worst-best]", "wanted", "reached"]
    return "### Goals\n\n" + _markdown(heading, rows)


def _bound_row(records: Sequence[Record], bound: Bound) -> list[str]:
    measured = spread_of_figure(records, bound.ours, bound.case, bound.figure)
    return [
        f"{bound.case} {bound.title}",
        f"{measured} {bound.unit}" if measured else "not measured",
        "-",
        "-",
        f"at {'most' if bound.lower_is_better else 'least'} {bound.bound:g} {bound.unit}",
        _YES_OR_NO[bound.is_reached_by(measured) if measured else None],
    ]


def limits_table(records: Sequence[Record]) -> str:
    """Return the machine's limits, measured in the same rounds."""
    figures = sorted({name for one in records if one.contestant == MACHINE for name in one.figures})
    rows = [[name, _cell(records, MACHINE, "limits", name)] for name in figures]
    return "### Limits of the machine\n\n" + _markdown(["limit", "value"], rows) if rows else ""


def detail_table(records: Sequence[Record], names: Sequence[str], case: str) -> str:
    """Return all figures of one case, "" if nobody ran it."""
    shown = [
        (figure, heading)
        for figure, heading in _DETAILS
        if any(spread_of_figure(records, name, case, figure) for name in names)
    ]
    rows = [
        [name, *(_cell(records, name, case, figure) for figure, _ in shown)]
        for name in names
        if spread_of_figure(records, name, case, "wall_s")
    ]
    if not rows:
        return ""
    heading = ["contestant", *(heading for _, heading in shown)]
    return f"### Case {case}: {CASE_TITLES[case]}\n\n" + _markdown(heading, rows)


def problem_list(records: Sequence[Record]) -> str:
    """Return a line for each thing that was not measured, with the reason."""
    lines = [
        f"- {one.contestant}, case {one.case}, round {one.round}: {one.problem}"
        for one in records
        if one.problem is not None
    ]
    return "### Not measured\n\n" + "\n".join(lines) if lines else ""


def _cell(records: Sequence[Record], name: str, case: str, figure: str) -> str:
    spread = spread_of_figure(records, name, case, figure)
    return "-" if spread is None else str(spread)


def _markdown(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(heading) + " |", "|" + "---|" * len(heading)]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines)
