"""Pictures of runs, saved as PNG files. The only place that needs matplotlib, an optional package.

For each workload: TTFT and worst gap as cumulative distributions, queue and pool over time. Over
all workloads: the main figures as bars.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .measures import Figures, ttft
from .records import RunRecords

_BARS: tuple[tuple[str, Callable[[Figures], float], bool], ...] = (
    ("share of optimal hits, %", lambda run: 100 * run.share_of_optimum, False),
    ("output tokens/s", lambda run: run.output_tokens_per_second, False),
    ("TTFT p50, s", lambda run: run.ttft.p50 or 0.0, True),
    ("TTFT p99, s", lambda run: run.ttft.p99 or 0.0, True),
    ("worst gap p99, s", lambda run: run.worst_gap.p99 or 0.0, True),
    ("retractions", lambda run: float(run.retractions), False),
)
_MAX_POINTS = 2_000


@dataclass(frozen=True, slots=True)
class PlottedRun:
    """One run: its workload, the settings that set it apart, and what came out."""

    workload: str
    setting: str
    figures: Figures
    records: RunRecords


def save_plots(runs: Sequence[PlottedRun], folder: Path) -> list[Path]:
    """Write all plots into folder and return the files. Raises ImportError without matplotlib."""
    # Optional, and without types: the plots are the only code that touches it.
    import matplotlib  # type: ignore[import-not-found,unused-ignore]

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt  # type: ignore[import-not-found,unused-ignore]

    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for workload in dict.fromkeys(run.workload for run in runs):
        chosen = [run for run in runs if run.workload == workload]
        figure = _workload_figure(plt, workload, chosen)
        files.append(_save(plt, figure, folder / f"{workload}.png"))
    if len(runs) > 1:
        files.append(_save(plt, _comparison_figure(plt, runs), folder / "comparison.png"))
    return files


def _workload_figure(plt: Any, workload: str, runs: Sequence[PlottedRun]) -> Any:
    figure, axes = plt.subplots(2, 2, figsize=(12, 8), constrained_layout=True)
    figure.suptitle(workload)
    first, gap, queue, pool = axes.flat
    for run in runs:
        requests = run.records.requests.values()
        steps = run.records.steps
        _cumulative(first, [x for one in requests if (x := ttft(one)) is not None], run.setting)
        _cumulative(gap, [one.worst_gap for one in requests if one.num_output > 1], run.setting)
        _over_time(queue, steps.times, steps.waiting, run.setting)
        _over_time(pool, steps.times, steps.used_share, run.setting)
    first.set(xlabel="time to first token, s", ylabel="share of requests", xscale="log")
    gap.set(xlabel="worst gap of a stream, s", ylabel="share of requests", xscale="log")
    queue.set(xlabel="time, s", ylabel="waiting requests")
    pool.set(xlabel="time, s", ylabel="pool locked or held, share", ylim=(0, 1.02))
    for axis in axes.flat:
        axis.grid(alpha=0.3)
    first.legend()
    return figure


def _comparison_figure(plt: Any, runs: Sequence[PlottedRun]) -> Any:
    workloads = list(dict.fromkeys(run.workload for run in runs))
    settings = list(dict.fromkeys(run.setting for run in runs))
    by_place = {(run.workload, run.setting): run.figures for run in runs}
    figure, axes = plt.subplots(3, 2, figsize=(13, 11), constrained_layout=True)
    width = 0.8 / len(settings)
    places = np.arange(len(workloads))
    for axis, (title, value, logarithmic) in zip(axes.flat, _BARS, strict=True):
        for number, setting in enumerate(settings):
            found = [by_place.get((workload, setting)) for workload in workloads]
            heights = [0.0 if one is None else value(one) for one in found]
            axis.bar(places + (number + 0.5) * width - 0.4, heights, width, label=setting)
        axis.set(title=title, xticks=places, xticklabels=workloads)
        shown = [height for run in runs if (height := value(run.figures)) > 0]
        if logarithmic and shown and max(shown) > 10 * min(shown):
            axis.set_yscale("log")
        axis.grid(axis="y", alpha=0.3)
    handles, labels = axes.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), 6))
    return figure


def _cumulative(axis: Any, values: list[float], label: str) -> None:
    ordered = np.sort(np.maximum(values, 1e-4)) if values else np.array([1e-4])
    quantiles = np.linspace(0, 1, min(len(ordered), _MAX_POINTS))
    places = np.round(quantiles * (len(ordered) - 1)).astype(int)
    axis.plot(ordered[places], quantiles, label=label)


def _over_time(axis: Any, times: Sequence[float], values: Sequence[float], label: str) -> None:
    stride = len(times) // _MAX_POINTS + 1
    axis.plot(np.asarray(times)[::stride], np.asarray(values)[::stride], label=label)


def _save(plt: Any, figure: Any, file: Path) -> Path:
    figure.savefig(file, dpi=110)
    plt.close(figure)
    return file
