"""The command: traces and settings from flags, a run for each, tables, JSON and plots."""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import json
import sys
import time
from collections.abc import Sequence

from .applications import APPLICATIONS
from .arguments import parse_arguments
from .calibration import read_calibration
from .cost_model import CostModel, Device, Model, Roofline
from .measures import Figures, Slo, measure
from .optimum import best_hits, working_set_tokens
from .plots import PlottedRun, save_plots
from .presets import DEVICES, find_model
from .report import comparison, full_report
from .scheduler_settings import RunSettings, every_combination
from .setup import Setup
from .simulator import Simulator
from .trace import Trace
from .trace_file import read_trace, write_trace
from .workloads import Arrivals, make_trace


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return the exit status."""
    options = parse_arguments(arguments)
    try:
        if options.plots and importlib.util.find_spec("matplotlib") is None:
            raise ValueError("--plots needs matplotlib: pip install matplotlib")
        runs = _run_all(options)
        _print([run.figures for run in runs], as_json=options.json)
        if options.plots:
            for file in save_plots(runs, options.plots):
                print(f"wrote {file}", file=sys.stderr)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _run_all(options: argparse.Namespace) -> list[PlottedRun]:
    model = find_model(options.model, options.devices)
    device = DEVICES[options.device]
    cost = _cost_model(options, model, device)
    settings = every_combination(options.set, options.vary, options.run, options.queue_depth)
    slo = Slo(
        ttft_seconds=options.slo_ttft,
        tpot_seconds=options.slo_tpot,
        gap_seconds=options.slo_gap,
    )
    runs = []
    for trace in _traces(options):
        pool_tokens = _pool_tokens(options, model, device, trace)
        context = options.context_length or model.context_length
        print(
            f"{trace.name}: {len(trace.requests)} requests, pool of {pool_tokens} tokens",
            file=sys.stderr,
        )
        bound = best_hits(trace, pool_tokens, options.page_size, context)
        for one in settings:
            setup = Setup(
                cost=cost,
                pool_tokens=pool_tokens,
                context_length=context,
                page_size=options.page_size,
                max_running_requests=options.max_running_requests,
                overrides=one.overrides,
                queue_depth=one.queue_depth,
                stream=not options.no_stream,
                full_launch=options.full_launch,
            )
            records = Simulator(trace, setup, _progress(options)).run()
            figures = measure(records, bound, slo, {"trace": trace.name, **one.labels})
            runs.append(PlottedRun(trace.name, _setting_name(one), figures, records))
    return runs


def _traces(options: argparse.Namespace) -> list[Trace]:
    if options.trace is not None:
        traces = [read_trace(options.trace)]
    else:
        arrivals = Arrivals(requests_per_second=options.rate, burstiness=options.burstiness)
        traces = [
            make_trace(
                name, APPLICATIONS[name], options.requests, arrivals, options.seed, options.asking
            )
            for name in options.workload
        ]
    if options.save_trace is not None:
        write_trace(traces[0], options.save_trace)
    return [_scaled(trace, options.delay_scale, options.output_scale) for trace in traces]


def _scaled(trace: Trace, delay_scale: float, output_scale: int) -> Trace:
    if delay_scale == output_scale == 1:
        return trace
    requests = [
        dataclasses.replace(
            one,
            delay=one.delay * delay_scale,
            # Answers that are spelt out are repeated; the stop still ends the last.
            output=one.output * output_scale,
            max_tokens=one.max_tokens * output_scale,
        )
        for one in trace.requests
    ]
    return Trace(requests, trace.name)


def _cost_model(options: argparse.Namespace, model: Model, device: Device) -> CostModel:
    if options.calibrate is None:
        return Roofline(model, device)
    fitted = read_calibration(options.calibrate)
    print(f"calibrated: {fitted}\nfit: {fitted.error}", file=sys.stderr)
    return fitted


def _pool_tokens(options: argparse.Namespace, model: Model, device: Device, trace: Trace) -> int:
    if options.pool_share is not None:
        tokens = int(options.pool_share * working_set_tokens(trace))
    else:
        tokens = options.pool_tokens or model.pool_tokens(device, options.memory_share)
    if tokens < options.page_size:
        raise ValueError(f"{model.name} leaves no room for KV on {device.name}; set --pool-tokens")
    return tokens


def _setting_name(settings: RunSettings) -> str:
    return (
        ", ".join(
            value if name in ("policy", "admission", "run") else f"{name} {value}"
            for name, value in settings.labels.items()
        )
        or "defaults"
    )


class _Progress:
    """A line on stderr every few seconds."""

    INTERVAL_SECONDS = 5.0

    def __init__(self) -> None:
        self._begin = self._last = time.monotonic()

    def __call__(self, ended: int, total: int) -> None:
        now = time.monotonic()
        if now - self._last > self.INTERVAL_SECONDS:
            self._last = now
            seconds = now - self._begin
            print(f"  {ended} of {total} requests after {seconds:.0f} s", file=sys.stderr)


def _progress(options: argparse.Namespace) -> _Progress | None:
    return None if options.quiet else _Progress()


def _print(runs: Sequence[Figures], as_json: bool) -> None:
    if as_json:
        print(json.dumps([dataclasses.asdict(run) for run in runs], indent=1))
    elif len(runs) == 1:
        print(full_report(runs[0]))
    else:
        print(comparison(runs))
