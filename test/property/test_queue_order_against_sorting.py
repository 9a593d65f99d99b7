"""The kept queue order against sorting from scratch, while the tree and the queue change."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from runtime.srt.memory.kv_memory import KvMemory
from runtime.srt.messages import GenerateRequest
from runtime.srt.sampling_params import SamplingParams
from runtime.srt.scheduling.request import Request
from runtime.srt.scheduling.waiting_queue import WaitingQueue

NUM_OPERATIONS = 1500
POOL_TOKENS = 200


def random_tokens(rng: random.Random) -> list[int]:
    return [rng.randrange(2) for _ in range(rng.randrange(1, 24))]


class Bench:
    """A queue over a small pool, with requests that come and go at random."""

    def __init__(self, policy: str, seed: int, page_size: int, **options: object) -> None:
        self.rng = random.Random(seed)
        self.memory = KvMemory(POOL_TOKENS, page_size, 4, 64)
        self.now = 0.0
        self.work = 0
        self.queue = WaitingQueue(
            self.memory, policy, lambda: self.now, lambda: self.work, **options
        )
        self.waiting: list[Request] = []
        self.numbers = itertools.count()

    def arrive(self) -> None:
        self.now += 1.0
        request = Request.of(
            GenerateRequest(
                rid=str(next(self.numbers)),
                input_ids=random_tokens(self.rng),
                sampling=SamplingParams(max_new_tokens=self.rng.randrange(1, 50)),
                namespace=self.rng.choice([None, None, "a"]),
                priority=self.rng.choice([0, 0, 0, 1]),
                arrival_seconds=self.now,
            ),
            lambda params, tail: None,
        )
        self.queue.add(request)
        self.waiting.append(request)

    def leave(self, request: Request) -> None:
        self.queue.remove(request)
        self.waiting.remove(request)

    def compute(self) -> None:
        """Insert a sequence, evicting what is in its way."""
        tokens = np.array(random_tokens(self.rng), dtype=np.int32)
        lease = self.memory.open(tokens, self.rng.choice([None, "a"]), len(tokens))
        assert lease is not None
        if self.memory.grow(lease, len(tokens)):
            self.memory.close(lease, tokens, len(tokens))
        else:
            self.memory.close(lease, tokens, lease.num_matched)

    def any_operation(self) -> None:
        chance = self.rng.random()
        if chance < 0.35 and len(self.waiting) < 40:
            self.arrive()
        elif chance < 0.5 and self.waiting:
            self.leave(self.rng.choice(self.waiting))
        elif chance < 0.51:
            self.memory.flush()
        else:
            self.compute()
        self.work += self.rng.randrange(10)

    def cached(self, request: Request) -> int:
        limited = request.all_tokens()[: request.match_limit]
        return self.memory.peek_prefix_length(limited, request.message.namespace)

    def order(self) -> list[Request]:
        walk = self.queue.candidates()
        found = list(walk)
        walk.close()
        return found


KEYS = {
    "fcfs": lambda bench, r: r.message.arrival_seconds,
    "lpm": lambda bench, r: (-bench.cached(r), r.message.arrival_seconds),
    "lof": lambda bench, r: (-r.max_new_tokens, r.message.arrival_seconds),
    "shortest-prefill-first": lambda bench, r: (
        r.num_tokens - bench.cached(r),
        r.message.arrival_seconds,
    ),
}


@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize("policy", KEYS)
@pytest.mark.parametrize("seed", range(3))
def test_the_kept_order_is_the_sorted_one(policy: str, seed: int, page_size: int) -> None:
    bench = Bench(policy, seed, page_size, ageing_stride=10**9)
    key = KEYS[policy]

    for _ in range(NUM_OPERATIONS):
        bench.any_operation()
        expected = sorted(
            bench.waiting, key=lambda r: (-r.message.priority, key(bench, r), r.number)
        )
        assert bench.order() == expected


@pytest.mark.parametrize("policy", ["lpm", "hrrn", "dfs-weight", "random"])
def test_every_waiting_request_is_met_once(policy: str) -> None:
    bench = Bench(policy, 7, 1)

    for _ in range(NUM_OPERATIONS):
        bench.any_operation()
        assert sorted(r.number for r in bench.order()) == sorted(r.number for r in bench.waiting)


@pytest.mark.parametrize("policy", ["lpm", "shortest-prefill-first", "hrrn", "lof"])
def test_every_eighth_admission_goes_to_the_oldest(policy: str) -> None:
    bench = Bench(policy, 3, 1)
    while len(bench.waiting) < 40:
        bench.any_operation()

    for place in range(32):
        walk = bench.queue.candidates()
        request = next(walk)
        if place % 8 == 7:
            assert request is min(bench.waiting, key=lambda r: (-r.message.priority, r.number))
        bench.queue.admit(request)
        bench.waiting.remove(request)
        walk.close()


def test_who_has_waited_beyond_the_bound_comes_first_whatever_its_place() -> None:
    bench = Bench("lpm", 5, 1, max_wait_seconds=100.0)
    for _ in range(20):
        bench.arrive()
    bench.now += 110.0
    for _ in range(10):
        bench.arrive()

    first = bench.order()[:20]

    assert [r.number for r in first] == sorted(r.number for r in bench.waiting)[:20]
