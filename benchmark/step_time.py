"""Time the scheduler itself: what a step costs besides the model.

    python benchmark/step_time.py --running 256 --waiting 10000 --json

The scheduler runs as in the server, on a full pool, with a model that answers at once. Each step is
timed in its parts: plan (queue order, admission, slots), build (the batch's arrays and its launch)
and absorb (tokens, stop rules, the tree, the messages to the detokenizer); step_us is their sum.
Prompts stand behind 200 shared prefixes, every request streams, and whoever ends is replaced by an
arrival, which is received outside the timing (receive_us is the time of one). Medians in
microseconds of CPU time, so that other programs' share of the core does not count; step_wall_us is
the wall time. One run for each policy with the first of the admission rules, and for each further
rule with the first policy.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from runtime.srt.execution.forward_batch import (
    ForwardBatch,
    PromptLogprobRow,
    SampledToken,
    SampleRow,
    StepOutput,
)
from runtime.srt.memory.kv_memory import KvMemory
from runtime.srt.messages import GenerateRequest, SchedulerState, StateQuery
from runtime.srt.sampling_params import SamplingParams
from runtime.srt.scheduling.admission import RULES
from runtime.srt.scheduling.config import SchedulerConfig
from runtime.srt.scheduling.queue_order import POLICIES
from runtime.srt.scheduling.request import StopChecker
from runtime.srt.scheduling.scheduler import Scheduler

CONTEXT = 8_192
CHUNK_TOKENS = 2_048
NUM_PREFIXES = 200
PREFIX_TOKENS = 200
WARM_UP_STEPS = 300
GC_THRESHOLDS = (20_000, 50, 1_000_000)  # the server's scheduler process has these
TOKEN = 7  # what the model always answers; no stop token
EOS_TOKEN = 2


def main() -> None:
    """Run the benchmark and print its figures."""
    options = _parse_arguments()
    pairs = [(policy, options.admission[0]) for policy in options.policies]
    pairs += [(options.policies[0], rule) for rule in options.admission[1:]]
    runs = [
        measure(
            options.running,
            options.waiting,
            options.steps,
            policy,
            rule,
            options.seed,
            options.pool_per_running,
        )
        for policy, rule in pairs
    ]
    if options.json:
        print(json.dumps({**runs[0], "runs": runs}, indent=1))
        return
    names = list(runs[0])
    print("| " + " | ".join(names) + " |")
    print("|" + " --- |" * len(names))
    for run in runs:
        print("| " + " | ".join(str(run[name]) for name in names) + " |")


def measure(
    num_running: int,
    num_waiting: int,
    num_steps: int,
    policy: str,
    admission: str,
    seed: int,
    pool_per_running: int,
) -> dict[str, object]:
    """Fill a scheduler, take it through its steps and return medians in microseconds."""
    bench = StepBench(num_running, num_waiting, policy, admission, seed, pool_per_running)
    bench.fill()
    for _ in range(WARM_UP_STEPS):
        bench.step()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    parts, walls = [], []
    for _ in range(num_steps):
        began = time.perf_counter_ns()
        parts.append(bench.step())
        walls.append(bench.ended_ns - began)
    gc.unfreeze()
    state = bench.state()
    totals = np.sum(parts, axis=1) / 1_000
    plan, build, absorb = np.median(parts, axis=0) / 1_000
    return {
        "policy": policy,
        "admission": admission,
        "running": state.num_running,
        "waiting": state.num_waiting,
        "step_us": round(float(np.median(totals)), 1),
        "step_p99_us": round(float(np.percentile(totals, 99)), 1),
        "step_wall_us": round(float(np.median(walls)) / 1_000, 1),
        "plan_us": round(float(plan), 1),
        "build_us": round(float(build), 1),
        "absorb_us": round(float(absorb), 1),
        "receive_us": round(float(np.median(bench.receive_ns)) / 1_000, 1),
    }


class InstantModel:
    """An Executor that draws the same token for everybody and takes no time."""

    def execute(
        self,
        batch: ForwardBatch,
        sample_rows: list[SampleRow],
        prompt_logprob_rows: list[PromptLogprobRow],
    ) -> StepOutput:
        """Return a token for each sample row."""
        return StepOutput([SampledToken(TOKEN)] * len(sample_rows), [])


@dataclass
class StepBench:
    """A scheduler that is kept full."""

    num_running: int
    num_waiting: int
    policy: str
    admission: str
    seed: int
    pool_per_running: int
    receive_ns: list[int] = field(default_factory=list)
    ended_ns: int = 0  # of the last step

    def __post_init__(self) -> None:
        self._rng = np.random.default_rng(self.seed)
        self._prefixes = [self._tokens(PREFIX_TOKENS) for _ in range(NUM_PREFIXES)]
        self._num_requests = 0
        self._scheduler = Scheduler(
            SchedulerConfig(
                context_length=CONTEXT,
                max_running_requests=self.num_running,
                chunk_tokens=CHUNK_TOKENS,
                policy=self.policy,
                admission=self.admission,
                eos_token_ids=frozenset({EOS_TOKEN}),
                log_interval_steps=1_000_000,
            ),
            KvMemory(self.pool_per_running * self.num_running, 1, self.num_running, CONTEXT),
            InstantModel(),
            _no_stop_text,
        )

    def fill(self) -> None:
        """Bring the queue to its length, and as many again to run."""
        for _ in range(self.num_running + self.num_waiting):
            self._arrive()

    def step(self) -> Sequence[int]:
        """Take one step and refill the queue; return the nanoseconds of plan, build, absorb."""
        scheduler = self._scheduler
        times = [time.thread_time_ns()]
        plan = scheduler.plan()
        times.append(time.thread_time_ns())
        assert plan is not None, "a full queue has nothing to compute"
        in_flight = scheduler.launch(plan)
        assert in_flight is not None, "a step that is not computed needs no memory"
        times.append(time.thread_time_ns())
        scheduler.absorb(in_flight)
        scheduler.take_token_deltas()
        times.append(time.thread_time_ns())
        self.ended_ns = time.perf_counter_ns()
        for _ in range(self.num_waiting - self.state().num_waiting):
            self._arrive()
        return list(np.diff(times).tolist())

    def state(self) -> SchedulerState:
        """Return what the scheduler tells of itself."""
        self._scheduler.receive(StateQuery(0))
        (state,) = self._scheduler.take_replies()
        assert isinstance(state, SchedulerState)
        return state

    def _arrive(self) -> None:
        self._num_requests += 1
        rng = self._rng
        prefix = self._prefixes[int(rng.integers(NUM_PREFIXES))]
        own = self._tokens(int(rng.integers(10, 200)))
        num_output = int(rng.integers(50, 400))
        message = GenerateRequest(
            rid=str(self._num_requests),
            input_ids=[*prefix, *own],
            sampling=SamplingParams(max_new_tokens=num_output),
            stream=True,
            arrival_seconds=time.monotonic(),
        )
        began = time.perf_counter_ns()
        self._scheduler.receive(message)
        self.receive_ns.append(time.perf_counter_ns() - began)

    def _tokens(self, count: int) -> list[int]:
        return list(self._rng.integers(10, 32_000, count).tolist())


def _no_stop_text(params: SamplingParams, prompt_tail: tuple[int, ...]) -> StopChecker:
    raise AssertionError("no request here has stop strings")


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--running", type=int, default=256, help="requests in a step (256)")
    parser.add_argument("--waiting", type=int, default=10_000, help="requests in the queue (10000)")
    parser.add_argument("--steps", type=int, default=300, help="timed (300)")
    parser.add_argument(
        "--policies",
        type=lambda text: _names(text, POLICIES),
        default=sorted(POLICIES, key=lambda name: name != "lpm"),
        metavar="NAME,...",
        help=f"queue order, of {', '.join(POLICIES)} (all, lpm first)",
    )
    parser.add_argument(
        "--admission",
        type=lambda text: _names(text, RULES),
        default=list(RULES),
        metavar="NAME,...",
        help=f"admission rule, of {', '.join(RULES)} (all)",
    )
    parser.add_argument(
        "--pool-per-running",
        type=int,
        default=1_600,
        metavar="TOKENS",
        help="size of the pool for each running request: 1600 have room for all, 500 press (1600)",
    )
    parser.add_argument("--seed", type=int, default=0, help="of the prompts (0)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    if min(options.running, options.waiting, options.steps) < 1:
        sys.exit("--running, --waiting and --steps must be at least 1")
    if options.pool_per_running < 100:
        sys.exit("--pool-per-running must be at least 100, or few of the requests run")
    return options


def _names(text: str, known: Sequence[str] | dict[str, object]) -> list[str]:
    names = text.split(",")
    for name in names:
        if name not in known:
            raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(known)}")
    return names


if __name__ == "__main__":
    main()
