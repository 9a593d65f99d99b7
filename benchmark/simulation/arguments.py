"""The command's flags."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

from .applications import APPLICATIONS, PAPER_APPLICATIONS
from .presets import DEVICES, MODELS
from .scheduler_settings import choices, setting_names
from .workloads import ASKING

_DESCRIPTION = """\
Run the scheduler on a virtual clock over a cost model and a trace of requests.

Real are queue order, admission, retraction, prefix tree and chunking; simulated are the time of a
step and the answers. Several values in --policies, --admission, --vary, --queue-depth or --workload
give one run for each combination and a table of them. See docs/simulator.md."""

_EXAMPLES = """\
examples:
  python benchmark/simulate.py --workload multi-turn --rate 20
  python benchmark/simulate.py --workload paper --pool-share 0.25 --queue-depth 2000 \\
      --policies lpm,fcfs --plots build/simulation
  python benchmark/simulate.py --workload agents --save-trace agents.jsonl
  python benchmark/simulate.py --trace agents.jsonl --admission ratio,learnt --json"""


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the checked options. Exits with a message where they are wrong."""
    parser = argparse.ArgumentParser(
        prog="simulate.py",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_trace_flags(parser)
    _add_machine_flags(parser)
    _add_scheduler_flags(parser)
    _add_output_flags(parser)
    options = parser.parse_args(arguments)
    if options.save_trace is not None and len(options.workload) > 1:
        parser.error("--save-trace takes one workload at a time")
    options.vary = [
        *([f"policy={options.policies}"] if options.policies else []),
        *([f"admission={options.admission}"] if options.admission else []),
        *options.vary,
    ]
    return options


def _add_trace_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("trace")
    group.add_argument("--trace", type=Path, metavar="FILE", help="replay this JSONL trace")
    group.add_argument(
        "--workload",
        type=_workloads,
        default=["multi-turn"],
        metavar="NAME,...",
        help=f"make traces of {', '.join(APPLICATIONS)}; paper: all but the last (multi-turn)",
    )
    group.add_argument(
        "--requests", type=_positive(int), default=2_000, help="at least, of each trace (2000)"
    )
    group.add_argument(
        "--rate",
        type=_rate,
        default=20.0,
        metavar="PER_SECOND",
        help="requests per second, over whole programs; inf: all at once (20)",
    )
    group.add_argument(
        "--burstiness",
        type=_positive(float),
        default=1.0,
        help="deviation of the intervals between programs over their mean: 1 Poisson, 4 bursts (1)",
    )
    group.add_argument(
        "--delay-scale",
        type=_not_negative,
        default=1.0,
        metavar="FACTOR",
        help="of the time for thinking and tools between dependent requests; 0: none (1)",
    )
    group.add_argument(
        "--output-scale",
        type=_positive(int),
        default=1,
        metavar="FACTOR",
        help="of the answers and of max_tokens, as of models that think first; a whole number (1)",
    )
    group.add_argument(
        "--asking",
        choices=ASKING,
        default="generous",
        help="max_tokens of the requests: one of the next three powers of two above the answer, "
        "the next one, or exactly the answer (generous)",
    )
    group.add_argument("--seed", type=int, default=0, help="of the trace (0)")
    group.add_argument("--save-trace", type=Path, metavar="FILE", help="write the trace as JSONL")


def _add_machine_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("machine")
    group.add_argument("--device", choices=list(DEVICES), default="h100", help="(h100)")
    group.add_argument(
        "--model",
        default="llama-3-8b",
        help=f"{', '.join(MODELS)}, or the path of a config.json (llama-3-8b)",
    )
    group.add_argument(
        "--devices",
        type=_positive(int),
        metavar="N",
        help="devices that the model is split over (1; llama-3-70b: 4)",
    )
    group.add_argument(
        "--calibrate",
        type=Path,
        metavar="FILE",
        help="take the time of a step from measured ones: JSON list of "
        "[prefill tokens, decode rows, kv tokens, ms]",
    )
    pool = group.add_mutually_exclusive_group()
    pool.add_argument("--pool-tokens", type=_positive(int), help="size of the KV pool")
    pool.add_argument(
        "--pool-share",
        type=_positive(float),
        metavar="SHARE",
        help="size of the KV pool as a share of all distinct tokens of the trace",
    )
    group.add_argument(
        "--memory-share",
        type=_positive(float),
        default=0.88,
        metavar="SHARE",
        help="of the device's memory, for weights and pool, where neither is given (0.88)",
    )
    group.add_argument("--page-size", type=_positive(int), default=1, help="tokens (1)")
    group.add_argument("--context-length", type=_positive(int), help="tokens (the model's)")


def _add_scheduler_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("scheduler")
    group.add_argument(
        "--policies", metavar="NAME,...", help=f"queue order: {', '.join(choices('policy'))}"
    )
    group.add_argument(
        "--admission", metavar="NAME,...", help=f"admission rule: {', '.join(choices('admission'))}"
    )
    group.add_argument(
        "--queue-depth",
        type=_depths,
        default=[None],
        metavar="N,...",
        help="ignore the arrival times: keep so many requests waiting; none: keep them (none)",
    )
    group.add_argument(
        "--max-running-requests", type=_positive(int), default=256, metavar="N", help="(256)"
    )
    group.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="FIELD=VALUE",
        help=f"in all runs; fields: {', '.join(setting_names())}",
    )
    group.add_argument(
        "--vary",
        action="append",
        default=[],
        metavar="FIELD=VALUE,...",
        help="a run with each value; may be repeated",
    )
    group.add_argument(
        "--run",
        action="append",
        default=[],
        metavar="NAME:FIELD=VALUE,...",
        help="a run with these settings, called NAME in tables and plots; may be repeated",
    )
    group.add_argument(
        "--full-launch",
        action="store_true",
        help="build the batches too: slower, and the wall time of a step is the server's",
    )
    group.add_argument(
        "--no-stream", action="store_true", help="answers leave whole: less wall time of a step"
    )


def _add_output_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("output")
    group.add_argument("--slo-ttft", type=_positive(float), default=2.0, metavar="S", help="(2)")
    group.add_argument(
        "--slo-tpot", type=_positive(float), default=0.1, metavar="S", help="mean, (0.1)"
    )
    group.add_argument(
        "--slo-gap", type=_positive(float), metavar="S", help="worst gap of a stream (no limit)"
    )
    group.add_argument("--json", action="store_true", help="print a JSON list of all figures")
    group.add_argument("--plots", type=Path, metavar="DIR", help="save plots (needs matplotlib)")
    group.add_argument("--quiet", action="store_true", help="no progress on stderr")


def _positive(kind: type[int] | type[float]) -> Callable[[str], int | float]:
    def parse(text: str) -> int | float:
        value = kind(text)
        if not value > 0:
            raise argparse.ArgumentTypeError(f"{text} is not above 0")
        return value

    parse.__name__ = kind.__name__  # argparse names it in its message
    return parse


def _not_negative(text: str) -> float:
    value = float(text)
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a number from 0 on")
    return value


def _rate(text: str) -> float | None:
    value = float(text)
    if not value > 0:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return None if value == float("inf") else value


def _workloads(text: str) -> list[str]:
    names = [
        name
        for part in text.split(",")
        for name in (PAPER_APPLICATIONS if part == "paper" else (part,))
    ]
    for name in names:
        if name not in APPLICATIONS:
            raise argparse.ArgumentTypeError(
                f"{name!r} is none of {', '.join(APPLICATIONS)}, paper"
            )
    return names


def _depths(text: str) -> list[int | None]:
    return [None if part == "none" else int(part) for part in text.split(",")]
