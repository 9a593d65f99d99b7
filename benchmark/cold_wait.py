"""How long a cold request waits while a hot stream goes on: the worst case for lpm.

    python benchmark/cold_wait.py --json

--clients clients send requests that share a prefix of 1,000 tokens, each the next one when it has
its answer, more of them than can run at once: somebody with a hot prefix always waits. In between
come requests that nothing in the cache serves. Simulated as in benchmark/simulate.py (a Llama 3 8B
on an H100). Runs: lpm alone, with every 8th admission to the oldest request (the default), with a
bound on the wait, with both, and fcfs.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))  # absent under PYTHONSAFEPATH

from simulation.cost_model import Roofline
from simulation.presets import DEVICES, find_model
from simulation.records import RequestRecord
from simulation.setup import Setup
from simulation.simulator import Simulator
from simulation.trace import Span, Trace, TraceRequest

HOT_TOKENS = 1_000
OWN_TOKENS = 40
NEVER = 10**9  # an ageing stride that no run reaches
MAX_RUNNING = 128
FIRST_COLD_SECONDS, COLD_INTERVAL_SECONDS = 1.0, 0.5


def main() -> None:
    """Run the benchmark and print its figures."""
    options = _parse_arguments()
    bound = options.max_wait_seconds
    runs: dict[str, dict[str, object]] = {
        "lpm, no ageing": {"ageing_stride": NEVER},
        "lpm": {},
        f"lpm, no ageing, at most {bound:g} s": {"ageing_stride": NEVER, "max_wait_seconds": bound},
        f"lpm, at most {bound:g} s": {"max_wait_seconds": bound},
        "fcfs": {"policy": "fcfs"},
    }
    trace = make_trace(options.clients, options.turns, options.cold, options.seed)
    results = [{"run": name, **simulate(trace, overrides)} for name, overrides in runs.items()]
    if options.json:
        print(json.dumps(results, indent=1))
        return
    names = list(results[0])
    print("| " + " | ".join(name.replace("_", " ") for name in names) + " |")
    print("|" + " --- |" * len(names))
    for result in results:
        print("| " + " | ".join(str(result[name]) for name in names) + " |")


def simulate(trace: Trace, overrides: dict[str, object]) -> dict[str, object]:
    """Run trace; return the waits of cold and hot requests until admission, in seconds."""
    model = find_model("llama-3-8b", None)
    device = DEVICES["h100"]
    setup = Setup(
        cost=Roofline(model, device),
        pool_tokens=model.pool_tokens(device, 0.88),
        context_length=model.context_length,
        max_running_requests=MAX_RUNNING,
        overrides=overrides,
    )
    records = Simulator(trace, setup).run()
    requests = list(records.requests.values())
    cold = _waits([one for one in requests if one.request.program == "cold"])
    hot = _waits([one for one in requests if one.request.program != "cold"])
    num_output = sum(one.num_output for one in requests)
    return {
        "cold_wait_median": round(float(np.median(cold)), 2),
        "cold_wait_worst": round(max(cold), 2),
        "hot_wait_median": round(float(np.median(hot)), 2),
        "hot_wait_worst": round(max(hot), 2),
        "output_tokens_per_second": round(num_output / records.virtual_seconds),
        "stream_seconds": round(records.virtual_seconds, 1),
    }


def make_trace(num_clients: int, num_turns: int, num_cold: int, seed: int) -> Trace:
    """Return the hot clients' requests, each after its client's last, and the cold ones."""
    rng = np.random.default_rng(seed)
    spans = iter(range(2, 2 + num_clients * num_turns + num_cold))
    requests: list[TraceRequest] = []
    for client in range(num_clients):
        for turn in range(num_turns):
            requests.append(
                TraceRequest(
                    id=f"{client}.{turn}",
                    prompt=(Span(1, HOT_TOKENS), Span(next(spans), OWN_TOKENS)),
                    output=int(rng.integers(50, 150)),
                    max_tokens=256,
                    after=(f"{client}.{turn - 1}",) if turn else (),
                    program=f"client{client}",
                )
            )
    for number in range(num_cold):
        requests.append(
            TraceRequest(
                id=f"cold{number}",
                prompt=(Span(next(spans), HOT_TOKENS + OWN_TOKENS),),
                output=100,
                max_tokens=256,
                arrival=FIRST_COLD_SECONDS + number * COLD_INTERVAL_SECONDS,
                program="cold",
            )
        )
    return Trace(requests, "hot stream")


def _waits(records: Sequence[RequestRecord]) -> list[float]:
    waits = []
    for one in records:
        assert one.admitted is not None, f"{one.request.id} was never admitted"
        waits.append(one.admitted - one.due)
    return waits


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--clients", type=int, default=192, help="hot ones; 128 can run (192)")
    parser.add_argument("--turns", type=int, default=20, help="requests of each client (20)")
    parser.add_argument("--cold", type=int, default=20, help="cold requests, one each 0.5 s (20)")
    parser.add_argument("--max-wait-seconds", type=float, default=2.0, help="the bound (2)")
    parser.add_argument("--seed", type=int, default=0, help="of the lengths (0)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    if min(options.clients, options.turns, options.cold) < 1 or options.max_wait_seconds <= 0:
        sys.exit("--clients, --turns, --cold and --max-wait-seconds must be positive")
    return options


if __name__ == "__main__":
    main()
