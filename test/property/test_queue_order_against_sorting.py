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
        self.work_at_arrival: dict[Request, int] = {}
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
        request.num_retractions = self.rng.choice([0, 0, 0, 2])
        self.queue.add(request)
        self.waiting.append(request)
        self.work_at_arrival[request] = self.work

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
    "hrrn": lambda bench, r: (
        -(bench.work - bench.work_at_arrival[r]) / max(r.num_tokens - bench.cached(r), 1)
    ),
}


def rank(request: Request) -> tuple[int, bool]:
    """Higher priorities first; of one priority, those that were retracted."""
    return -request.message.priority, request.num_retractions == 0


@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize("policy", KEYS)
@pytest.mark.parametrize("seed", range(3))
def test_the_kept_order_is_the_sorted_one(policy: str, seed: int, page_size: int) -> None:
    bench = Bench(policy, seed, page_size, ageing_stride=10**9)
    key = KEYS[policy]

    for _ in range(NUM_OPERATIONS):
        bench.any_operation()
        expected = sorted(bench.waiting, key=lambda r: (rank(r), key(bench, r), r.number))
        assert bench.order() == expected


def test_response_ratios_beyond_the_first_look_are_in_order_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("runtime.srt.scheduling.response_ratio_order.FIRST_LOOK", 3)

    test_the_kept_order_is_the_sorted_one("hrrn", 11, 1)


def test_the_branch_that_most_wait_for_goes_first_and_its_ends_before_its_root() -> None:
    bench = Bench("dfs-weight", 0, 1, ageing_stride=10**9)
    for tokens in ([1, 1, 1, 1], [1, 1, 0, 0], [0, 0]):
        array = np.array(tokens, dtype=np.int32)
        lease = bench.memory.open(array, None, len(array))
        assert lease is not None and bench.memory.grow(lease, len(array))
        bench.memory.close(lease, array, len(array))
    prompts = ([0, 0, 9], [1, 1, 9], [1, 1, 0, 0, 9], [1, 1, 1, 1, 9], [1, 1, 1, 1, 8], [5, 5])
    for number, prompt in enumerate(prompts):
        message = GenerateRequest(
            rid=str(number),
            input_ids=prompt,
            sampling=SamplingParams(max_new_tokens=1),
            arrival_seconds=float(number),
        )
        bench.queue.add(Request.of(message, lambda params, tail: None))

    assert [r.rid for r in bench.order()] == ["3", "4", "2", "1", "0", "5"]


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
            assert request is min(bench.waiting, key=lambda r: (rank(r), r.number))
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
