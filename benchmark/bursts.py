"""Throughput of a burst that forces retractions, repeated: does the second one suffer?

    python benchmark/bursts.py --json

In a burst --requests requests come at once, whose answers are much longer than their prompts and
several times what the pool holds; the next burst, of new prompts, comes a second after the last
answer of the one before. Simulated as in benchmark/simulate.py (a Llama 3 8B on an H100), one run
for each admission rule. Clients ask for exactly what they will get, which is where a forecast by a
share of the limit overbooks most.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))  # absent under PYTHONSAFEPATH

from simulation.cost_model import Roofline
from simulation.presets import DEVICES, find_model
from simulation.records import RequestRecord
from simulation.setup import Setup
from simulation.simulator import Simulator
from simulation.trace import Span, Trace, TraceRequest

from runtime.srt.scheduling.admission import RULES

PROMPT_TOKENS = 200
PAUSE_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Burst:
    """What one burst got."""

    output_tokens_per_second: float
    retractions: int
    worst_gap_p99_seconds: float


def main() -> None:
    """Run the benchmark and print its figures."""
    options = _parse_arguments()
    results = [
        run_bursts(options.requests, options.bursts, options.pool_tokens, rule, options.seed)
        for rule in options.admission
    ]
    if options.json:
        print(json.dumps(results, indent=1))
        return
    print("| admission | burst | output tokens/s | of the first | retractions | gap p99 s |")
    print("| --- | --- | --- | --- | --- | --- |")
    for result in results:
        for number, burst in enumerate(result["bursts"], start=1):
            print(f"| {result['admission']} | {number} | " + " | ".join(map(str, burst.values())))


def run_bursts(
    num_requests: int, num_bursts: int, pool_tokens: int, admission: str, seed: int
) -> dict[str, object]:
    """Simulate the bursts under one admission rule and return the figures of each."""
    trace = make_bursts(num_requests, num_bursts, seed)
    model = find_model("llama-3-8b", None)
    setup = Setup(
        cost=Roofline(model, DEVICES["h100"]),
        pool_tokens=pool_tokens,
        context_length=model.context_length,
        overrides={"admission": admission},
    )
    records = list(Simulator(trace, setup).run().requests.values())
    bursts = [
        _figures([one for one in records if one.request.program == f"burst{number}"])
        for number in range(num_bursts)
    ]
    first = bursts[0].output_tokens_per_second
    return {
        "admission": admission,
        "bursts": [
            {
                "output_tokens_per_second": round(one.output_tokens_per_second),
                "of_the_first": round(one.output_tokens_per_second / first, 3),
                "retractions": one.retractions,
                "worst_gap_p99_seconds": round(one.worst_gap_p99_seconds, 3),
            }
            for one in bursts
        ],
    }


def make_bursts(num_requests: int, num_bursts: int, seed: int) -> Trace:
    """Return bursts of equal lengths; each waits for all of the one before."""
    lengths = np.random.default_rng(seed).integers(300, 1_200, num_requests).tolist()
    requests: list[TraceRequest] = []
    before: tuple[str, ...] = ()
    for burst in range(num_bursts):
        names = tuple(f"{burst}.{number}" for number in range(num_requests))
        requests += [
            TraceRequest(
                id=name,
                prompt=(Span(len(requests) + number + 1, PROMPT_TOKENS),),
                output=length,
                max_tokens=length,
                after=before,
                delay=PAUSE_SECONDS if before else 0.0,
                program=f"burst{burst}",
            )
            for number, (name, length) in enumerate(zip(names, lengths, strict=True))
        ]
        before = names
    return Trace(requests, "bursts")


def _figures(records: Sequence[RequestRecord]) -> Burst:
    assert all(one.is_finished for one in records), "a request of a burst was not finished"
    seconds = max(one.ended or 0.0 for one in records) - min(one.due for one in records)
    return Burst(
        output_tokens_per_second=sum(one.num_output for one in records) / seconds,
        retractions=sum(one.num_retractions for one in records),
        worst_gap_p99_seconds=float(np.percentile([one.worst_gap for one in records], 99)),
    )


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--requests", type=int, default=400, help="in a burst (400)")
    parser.add_argument("--bursts", type=int, default=3, help="one after another (3)")
    parser.add_argument("--pool-tokens", type=int, default=60_000, help="size of the pool (60000)")
    parser.add_argument(
        "--admission",
        type=_rules,
        default=list(RULES),
        metavar="NAME,...",
        help=f"of {', '.join(RULES)} (all)",
    )
    parser.add_argument("--seed", type=int, default=0, help="of the lengths (0)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    if options.requests < 1 or options.bursts < 1:
        sys.exit("--requests and --bursts must be at least 1")
    if options.pool_tokens < 2_000:
        sys.exit("--pool-tokens must be at least 2000, or no request of a burst fits")
    return options


def _rules(text: str) -> list[str]:
    names = text.split(",")
    for name in names:
        if name not in RULES:
            raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(RULES)}")
    return names


if __name__ == "__main__":
    logging.getLogger("runtime").setLevel(logging.ERROR)  # thousands of retractions are no news
    main()
