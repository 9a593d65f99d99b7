"""Time the waiting queue: what a step pays to keep and read its order.

    python benchmark/queue_order.py --waiting 10000 --json

Prompts stand behind popular system prompts and documents; the pool is full and holds a quarter of
them. In each step 4 requests arrive, the first 4 of the order and one more are read, those 4 are
admitted: their prompts are matched, get slots (evicting others) and go into the tree; the 4
admitted longest ago end. memory_alone_us is the last part on a pool that nobody waits for; step_us
is what the queue adds to it: taking arrivals in, reading, letting go, and following what is
inserted and evicted. Medians in microseconds of CPU time, so that other programs' share of the
core does not count; with_memory_wall_us is the wall time of the whole. With --policy lpm the order
is compared with one sorted from scratch at the end.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from collections import deque
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import cast

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))  # absent under PYTHONSAFEPATH

from simulation.applications import APPLICATIONS
from simulation.optimum import working_set_tokens
from simulation.workloads import Arrivals, make_trace

from runtime.srt.memory.kv_memory import KvLease, KvMemory
from runtime.srt.messages import GenerateRequest
from runtime.srt.sampling_params import SamplingParams
from runtime.srt.scheduling.queue_order import POLICIES
from runtime.srt.scheduling.request import Request, StopChecker
from runtime.srt.scheduling.waiting_queue import WaitingQueue

PER_STEP = 4  # arrivals and admissions
NUM_RUNNING = 64
POOL_SHARE = 0.25
CONTEXT = 8_192


def main() -> None:
    """Run the benchmark and print its figures."""
    options = _parse_arguments()
    figures = measure(options.waiting, options.steps, options.policy, options.seed)
    if options.json:
        print(json.dumps(figures))
        return
    for name, value in figures.items():
        print(f"{name:24s} {value}")


def measure(num_waiting: int, num_steps: int, policy: str, seed: int) -> dict[str, object]:
    """Fill a queue, take it through num_steps steps and return medians in microseconds."""
    count = num_waiting + num_steps * PER_STEP
    requests, pool_tokens = _make_requests(2 * count, seed)
    bench = QueueBench(pool_tokens, policy)
    coming = iter(requests)
    while not bench.memory.evicted_tokens_total:
        bench.warm_up([next(coming)])
    for request in islice(coming, num_waiting):
        bench.queue.add(request)
    steps = [bench.step(list(islice(coming, PER_STEP))) for _ in range(num_steps)]
    figures: dict[str, object] = {
        "policy": policy,
        "waiting": len(bench.queue),
        "pool_tokens": pool_tokens,
        "evicted_tokens": bench.memory.evicted_tokens_total,
        "step_p99_us": round(float(np.percentile([step.step_us for step in steps], 99)), 1),
    }
    names = [field.name for field in dataclasses.fields(StepTimes)]
    for name in ("step_us", "with_memory_us", *names):
        median = np.median([getattr(step, name) for step in steps])
        figures[name] = round(float(median), 1)
    if policy == "lpm":
        figures["order_is_exact"] = bench.order_is_exact()
    return figures


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Microseconds of one step: CPU time of this thread, and the wall time of all of it."""

    arrivals_us: float
    read_us: float
    memory_us: float
    memory_alone_us: float
    with_memory_wall_us: float

    @property
    def step_us(self) -> float:
        """What the queue costs."""
        return self.arrivals_us + self.read_us + self.memory_us - self.memory_alone_us

    @property
    def with_memory_us(self) -> float:
        """What the step costs, matching, slots and insertion included."""
        return self.arrivals_us + self.read_us + self.memory_us


class QueueBench:
    """A queue over a pool, and the same pool again with no queue."""

    def __init__(self, pool_tokens: int, policy: str) -> None:
        self.memory = KvMemory(pool_tokens, 1, NUM_RUNNING, CONTEXT)
        self._alone = KvMemory(pool_tokens, 1, NUM_RUNNING, CONTEXT)
        # No place for the oldest: its turn would be compared with the order at the end.
        self.queue = WaitingQueue(
            self.memory, policy, time.monotonic, lambda: 0, ageing_stride=sys.maxsize
        )
        self._running: deque[tuple[Request, KvLease]] = deque()
        self._running_alone: deque[tuple[Request, KvLease]] = deque()

    def warm_up(self, requests: list[Request]) -> None:
        """Bring requests into both pools."""
        _compute(self.memory, self._running, requests)
        _compute(self._alone, self._running_alone, requests)

    def step(self, arrivals: list[Request]) -> StepTimes:
        """Take arrivals in, admit as many from the front and bring their prompts into the pool."""
        wall_began = time.perf_counter_ns()
        times = [time.thread_time_ns()]
        for request in arrivals:
            self.queue.add(request)
        times.append(time.thread_time_ns())
        admitted = self._admit()
        times.append(time.thread_time_ns())
        _compute(self.memory, self._running, admitted)
        times.append(time.thread_time_ns())
        wall_us = (time.perf_counter_ns() - wall_began) / 1_000
        _compute(self._alone, self._running_alone, admitted)
        times.append(time.thread_time_ns())
        arrivals_us, read_us, memory_us, alone_us = (np.diff(times) / 1_000).tolist()
        return StepTimes(arrivals_us, read_us, memory_us, alone_us, wall_us)

    def order_is_exact(self) -> bool:
        """Whether the kept order is the one that matching and sorting everything gives."""
        memory = self.memory

        def key(request: Request) -> tuple[int, float, int]:
            tokens = request.all_tokens()[: request.match_limit]
            cached = memory.peek_prefix_length(tokens, request.message.namespace)
            return -cached, request.message.arrival_seconds, request.number

        return list(self.queue.candidates()) == sorted(self.queue, key=key)

    def _admit(self) -> list[Request]:
        admitted: list[Request] = []
        candidates = self.queue.candidates()
        for request in candidates:
            if len(admitted) == PER_STEP:  # it does not fit any more
                break
            self.queue.admit(request)
            admitted.append(request)
        candidates.close()
        return admitted


def _compute(
    memory: KvMemory, running: deque[tuple[Request, KvLease]], admitted: list[Request]
) -> None:
    for request in admitted:
        if len(running) == NUM_RUNNING:
            _end_oldest(memory, running)
        tokens = request.all_tokens()
        lease = memory.open(tokens, request.message.namespace, request.match_limit)
        assert lease is not None, f"more than {NUM_RUNNING} requests run"
        while not memory.grow(lease, len(tokens)):  # a pool so small comes with small queues only
            _end_oldest(memory, running)
        memory.commit(lease, tokens, len(tokens))
        running.append((request, lease))


def _end_oldest(memory: KvMemory, running: deque[tuple[Request, KvLease]]) -> None:
    request, lease = running.popleft()
    memory.close(lease, request.all_tokens(), request.num_tokens)


def _make_requests(count: int, seed: int) -> tuple[list[Request], int]:
    arrivals = Arrivals(requests_per_second=100.0)
    trace = make_trace("zipf-forest", APPLICATIONS["zipf-forest"], count, arrivals, seed)
    sampling = SamplingParams(max_new_tokens=128)
    requests = [
        Request.of(
            GenerateRequest(
                rid=one.id,
                # As in the simulator: an array serves as well, and is a tenth as big.
                input_ids=cast(list[int], trace.prompt_tokens(one)),
                sampling=sampling,
                arrival_seconds=one.arrival,
            ),
            _no_stop_text,
        )
        for one in trace.requests
    ]
    return requests, int(POOL_SHARE / 2 * working_set_tokens(trace))  # twice what will wait


def _no_stop_text(params: SamplingParams, prompt_tail: tuple[int, ...]) -> StopChecker:
    raise AssertionError("no request here has stop strings")


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--waiting", type=int, default=10_000, help="requests in the queue (10000)")
    parser.add_argument("--steps", type=int, default=300, help="timed (300)")
    parser.add_argument("--policy", choices=list(POLICIES), default="lpm", help="(lpm)")
    parser.add_argument("--seed", type=int, default=0, help="of the prompts (0)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    if options.waiting < 100 or options.steps < 1:
        sys.exit("--waiting must be at least 100, --steps at least 1")
    return options


if __name__ == "__main__":
    main()
