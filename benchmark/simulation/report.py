"""Figures as text: one run in full, several runs as one table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .measures import Distribution, Figures

_DISTRIBUTIONS = (
    ("TTFT", "ttft"),
    ("TPOT", "tpot"),
    ("ITL", "itl"),
    ("worst gap of a stream", "worst_gap"),
    ("wait for admission", "queue_wait"),
    ("oldest waiting, over steps", "oldest_wait"),
    ("program latency", "program_latency"),
)


@dataclass(frozen=True, slots=True)
class Column:
    """A heading and the cell below it."""

    heading: str
    cell: Callable[[Figures], str]


def full_report(figures: Figures) -> str:
    """Return all figures of one run."""
    lines = [_title(figures), ""]
    lines += [f"{'milliseconds':28s}{'p50':>12s}{'p90':>12s}{'p99':>12s}{'max':>12s}{'count':>12s}"]
    for name, attribute in _DISTRIBUTIONS:
        lines.append(_distribution_line(name, getattr(figures, attribute), 1e3))
    lines.append(_distribution_line("scheduler's step, wall us", figures.step_wall_us, 1.0))
    lines.append(_distribution_line("scheduler's step, CPU us", figures.step_cpu_us, 1.0))
    outcomes = ", ".join(f"{count} {name}" for name, count in sorted(figures.outcomes.items()))
    preemptions = "not counted" if figures.preemptions is None else str(figures.preemptions)
    lines += [
        "",
        f"requests         {outcomes}",
        f"hit rate         {figures.hit_rate:.2%}, {figures.share_of_optimum:.2%} of the offline "
        f"optimum {figures.optimum_hit_rate:.2%}",
        f"throughput       {figures.output_tokens_per_second:.0f} output tokens/s, "
        f"{figures.requests_per_second:.2f} requests/s",
        f"goodput          {figures.goodput_per_second:.2f} requests/s, "
        f"{figures.slo_share:.2%} of the requests within the SLO",
        f"retractions      {figures.retractions} of {figures.retracted_requests} requests; "
        f"preemptions {preemptions}",
        f"time             {figures.virtual_seconds:.1f} s simulated in {figures.steps} steps, "
        f"{figures.wall_seconds:.1f} s of this machine",
    ]
    return "\n".join(lines)


def comparison(runs: Sequence[Figures]) -> str:
    """Return a Markdown table with a row for each run."""
    labels = list(dict.fromkeys(name for run in runs for name in run.labels))
    columns = [Column(name, _label_cell(name)) for name in labels] + list(_COLUMNS)
    cells = [[column.heading for column in columns]]
    cells += [[column.cell(run) for column in columns] for run in runs]
    widths = [max(len(row[place]) for row in cells) for place in range(len(columns))]
    rows = ["| " + " | ".join(map(str.ljust, row, widths)) + " |" for row in cells]
    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([rows[0], rule, *rows[1:]])


def _label_cell(name: str) -> Callable[[Figures], str]:
    return lambda run: run.labels.get(name, "-")


def _title(figures: Figures) -> str:
    return ", ".join(f"{name} {value}" for name, value in figures.labels.items())


def _distribution_line(name: str, found: Distribution, scale: float) -> str:
    values = "".join(
        f"{'-' if value is None else f'{value * scale:.1f}':>12s}"
        for value in (found.p50, found.p90, found.p99, found.max)
    )
    return f"{name:28s}{values}{found.count:12d}"


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value * 1e3:.0f}"


_COLUMNS = (
    Column("hit %", lambda run: f"{run.hit_rate:.1%}"),
    Column("of optimum", lambda run: f"{run.share_of_optimum:.1%}"),
    Column("TTFT p50 ms", lambda run: _ms(run.ttft.p50)),
    Column("TTFT p99", lambda run: _ms(run.ttft.p99)),
    Column("TPOT p50", lambda run: "-" if run.tpot.p50 is None else f"{run.tpot.p50 * 1e3:.1f}"),
    Column("ITL p99", lambda run: "-" if run.itl.p99 is None else f"{run.itl.p99 * 1e3:.1f}"),
    Column("gap p99", lambda run: _ms(run.worst_gap.p99)),
    Column("gap max", lambda run: _ms(run.worst_gap.max)),
    Column("oldest max s", lambda run: f"{run.oldest_wait.max or 0.0:.1f}"),
    Column("program p50 s", lambda run: f"{run.program_latency.p50 or 0.0:.1f}"),
    Column("program p99 s", lambda run: f"{run.program_latency.p99 or 0.0:.1f}"),
    Column("tok/s", lambda run: f"{run.output_tokens_per_second:.0f}"),
    Column("goodput/s", lambda run: f"{run.goodput_per_second:.2f}"),
    Column("retracted", lambda run: str(run.retractions)),
    Column("not finished", lambda run: str(_num_failed(run))),
    Column("step us p50", lambda run: f"{run.step_wall_us.p50 or 0.0:.0f}"),
    Column("step us p99", lambda run: f"{run.step_wall_us.p99 or 0.0:.0f}"),
    Column("CPU us p99", lambda run: f"{run.step_cpu_us.p99 or 0.0:.0f}"),
)


def _num_failed(run: Figures) -> int:
    return sum(count for name, count in run.outcomes.items() if name not in ("stop", "length"))
