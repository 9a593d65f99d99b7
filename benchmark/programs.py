"""Programs that call the model many times: with the tree, without it, and on peers.

    python benchmark/programs.py --rounds 3
    python benchmark/programs.py --programs react,llm-judge --peers --json
    python benchmark/programs.py --quick
    python benchmark/programs.py --programs rag --first-round 1 --rounds 1 --json > rag1.json
    python benchmark/programs.py --report rag0.json rag1.json

The program set of the SGLang paper at the size of the bundled model, each with several runs at once
through the frontend language. "no tree" is the same server with --disable-radix-cache. Every
program is greedy, and must write the same with the tree and without: else this ends with status 1.
Peers get the same programs through their OpenAI-compatible API with their own prefix cache; what
cannot take part is named with the reason. --report puts several runs with --json together. --quick:
two runs of each program, whose figures mean nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))  # absent under PYTHONSAFEPATH

from programs_bench.contestants import our_servers, peer_server, usable_peers
from programs_bench.report import as_json, as_table, progress_line, put_together
from programs_bench.rounds import OutputsDiffer, run_rounds
from programs_bench.workloads import WORKLOADS
from serving.contestants import Contestant, Setup, all_contestants

from runtime.srt.loading.resolve import resolve_model

_PEERS_VARIABLE = "BENCH_PEERS_DIR"
_MODEL = "smollm2-135m-instruct"
_SLOT_TOKENS = 4_608  # chat-long: four turns of up to 512 tokens, and answers


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark and print its figures."""
    options = _parse(arguments)
    if options.report:
        return _report(options)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the servers are ended too
    workloads = [WORKLOADS[name] for name in options.programs]
    left_out: list[str] = []
    results = []
    with ExitStack() as stack:
        ours = our_servers(options.threads, with_no_tree=not options.tree_only)
        contestants = stack.enter_context(ours)
        for peer in _peers(options):
            try:
                contestants.append(stack.enter_context(peer_server(peer)))
            except RuntimeError as error:
                left_out.append(f"{peer.name}: {str(error).strip().splitlines()[-1]}")
        left_out += [
            f"{one.name}, {workload.name}: its API has no {workload.needs}"
            for one in contestants
            for workload in workloads
            if one.backend_for(workload) is None
        ]
        rounds = range(options.first_round, options.first_round + options.rounds)
        try:
            for result in run_rounds(workloads, contestants, rounds, options.quick):
                results.append(result)
                print(progress_line(result), file=sys.stderr, flush=True)
        except OutputsDiffer as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
    if options.json:
        print(json.dumps({"quick": options.quick, "left_out": left_out, **as_json(results)}))
    else:
        print(as_table(results))
    for line in left_out:
        print(f"left out: {line}", file=sys.stderr)
    return 0


def _report(options: argparse.Namespace) -> int:
    """Print what several runs found."""
    try:
        results = put_together(json.loads(file.read_text("utf-8")) for file in options.report)
    except (OSError, ValueError) as error:
        print(f"error: --report: {error}", file=sys.stderr)
        return 1
    print(json.dumps(as_json(results)) if options.json else as_table(results))
    return 0


def _peers(options: argparse.Namespace) -> list[Contestant]:
    if options.peers is None:
        return []
    setup = Setup(
        model_folder=resolve_model(_MODEL),
        gguf_file=None,
        peers_dir=options.peers_dir,
        threads=options.threads,
        pool_tokens=0,
        slot_tokens=_SLOT_TOKENS,
    )
    peers = usable_peers(all_contestants(setup, with_peers=True))
    parts = options.peers.split(",")
    return [one for one in peers if any(part.strip() in one.name for part in parts)]


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "--programs", default=",".join(WORKLOADS), help=f"comma-separated ({','.join(WORKLOADS)})"
    )
    parser.add_argument("--rounds", type=int, default=3, help="of each, with texts of its own (3)")
    parser.add_argument(
        "--peers",
        nargs="?",
        const="",
        metavar="PART,...",
        help="run the installed peers too, or those whose names have one of these parts",
    )
    default_dir = os.environ.get(_PEERS_VARIABLE, "~/.cache/radix-runtime/peers")
    parser.add_argument(
        "--peers-dir",
        type=lambda text: Path(text).expanduser(),
        default=Path(default_dir).expanduser(),
        help=f"folder of the peers (default: ${_PEERS_VARIABLE}, or {default_dir})",
    )
    cores = len(os.sched_getaffinity(0))
    parser.add_argument("--threads", type=int, default=cores, help="of each server (all cores)")
    parser.add_argument(
        "--first-round", type=int, default=0, help="number of the first round, which sets its texts"
    )
    parser.add_argument(
        "--tree-only", action="store_true", help="leave our server without the tree out"
    )
    parser.add_argument(
        "--report", nargs="+", type=Path, metavar="FILE", help="runs nothing: the table of FILEs"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--quick", action="store_true", help="short, to see that it works")
    options = parser.parse_args(arguments)
    options.programs = [one.strip() for one in options.programs.split(",")]
    for name in options.programs:
        if name not in WORKLOADS:
            parser.error(f"--programs names {name!r}; there are {', '.join(WORKLOADS)}")
    if options.rounds < 1 or options.threads < 1 or options.first_round < 0:
        parser.error("--rounds and --threads must be at least 1, --first-round at least 0")
    if options.quick:
        options.rounds = 1
    return options


if __name__ == "__main__":
    sys.exit(main())
