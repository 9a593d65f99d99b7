"""The order of programs against sorting from scratch, while they come, begin and pause."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass

import numpy as np
import pytest

from runtime.srt.memory.kv_memory import KvMemory
from runtime.srt.messages import GenerateRequest
from runtime.srt.sampling_params import SamplingParams
from runtime.srt.scheduling import program_order
from runtime.srt.scheduling.request import Request
from runtime.srt.scheduling.waiting_queue import WaitingQueue

NUM_OPERATIONS = 1500
NEVER = 10**9  # an ageing stride that no run reaches


@dataclass(eq=False)
class Known:
    """What a plain model remembers of a program."""

    turn: tuple[float, int]
    last_arrival: float
    has_begun: bool = False


class Bench:
    """A queue over a small pool, with requests of a few programs that come and go at random."""

    def __init__(self, policy: str, seed: int, **options: object) -> None:
        self.rng = random.Random(seed)
        self.memory = KvMemory(200, 1, 4, 64)
        self.now = 0.0
        self.queue = WaitingQueue(
            self.memory, policy, lambda: self.now, lambda: 0, program_order=True, **options
        )
        self.waiting: dict[Request, Known | None] = {}
        self.programs: dict[tuple[str | None, str], Known] = {}
        self.numbers = itertools.count()

    def arrive(self) -> None:
        self.now += self.rng.choice([1.0, 1.0, 1.0, 250.0])
        rng = self.rng
        request = Request.of(
            GenerateRequest(
                rid=str(next(self.numbers)),
                input_ids=[rng.randrange(2) for _ in range(rng.randrange(1, 24))],
                sampling=SamplingParams(max_new_tokens=rng.randrange(1, 50)),
                priority=rng.choice([0, 0, 0, 1]),
                arrival_seconds=self.now,
                tenant=rng.choice([None, None, "t"]),
                program_id=rng.choice([None, *"abcdefgh"]),
            ),
            lambda params, tail: None,
        )
        request.num_retractions = rng.choice([0, 0, 0, 2])
        self.queue.add(request)
        self.waiting[request] = self.known(request)

    def known(self, request: Request) -> Known | None:
        message = request.message
        if message.program_id is None:
            return None
        key, arrival = (message.tenant, message.program_id), message.arrival_seconds
        found = self.programs.get(key)
        if found is None or arrival > found.last_arrival + program_order.IDLE_SECONDS:
            found = self.programs[key] = Known((arrival, request.number), arrival)
        found.last_arrival = max(found.last_arrival, arrival)
        return found

    def admit(self, request: Request) -> None:
        self.queue.admit(request)
        del self.waiting[request]
        program = self.known(request)
        if program is not None:
            program.has_begun = True

    def compute(self) -> None:
        """Insert a sequence, evicting what is in its way."""
        tokens = np.array([self.rng.randrange(2) for _ in range(20)], dtype=np.int32)
        lease = self.memory.open(tokens, None, len(tokens))
        assert lease is not None
        if self.memory.grow(lease, len(tokens)):
            self.memory.close(lease, tokens, len(tokens))
        else:
            self.memory.close(lease, tokens, lease.num_matched)

    def any_operation(self) -> None:
        chance = self.rng.random()
        if chance < 0.4 and len(self.waiting) < 40:
            self.arrive()
        elif chance < 0.55 and self.waiting:
            self.admit(self.rng.choice(list(self.waiting)))
        elif chance < 0.6 and self.waiting:
            request = self.rng.choice(list(self.waiting))
            self.queue.remove(request)
            del self.waiting[request]
        else:
            self.compute()

    def cached(self, request: Request) -> int:
        return self.memory.peek_prefix_length(request.all_tokens()[: request.match_limit], None)

    def order(self) -> list[Request]:
        walk = self.queue.candidates()
        found = list(walk)
        walk.close()
        return found

    def sorted(self, policy: str) -> list[Request]:
        def key(request: Request) -> tuple[object, ...]:
            message, program = request.message, self.waiting[request]
            rank = (-message.priority, request.num_retractions == 0)
            turn = program.turn if program is not None and program.has_begun else (NEVER, 0)
            own = -self.cached(request) if policy == "lpm" else 0
            return (rank, turn, own, message.arrival_seconds, request.number)

        return sorted(self.waiting, key=key)


@pytest.mark.parametrize("policy", ["lpm", "fcfs"])
@pytest.mark.parametrize("seed", range(4))
def test_the_kept_order_is_the_sorted_one(policy: str, seed: int) -> None:
    bench = Bench(policy, seed, ageing_stride=NEVER)

    for _ in range(NUM_OPERATIONS):
        bench.any_operation()
        assert bench.order() == bench.sorted(policy)

    assert any(one.has_begun for one in bench.programs.values())


@pytest.mark.parametrize("policy", ["lpm", "fcfs", "hrrn", "dfs-weight", "random"])
def test_every_waiting_request_is_met_once_even_if_programs_begin_meanwhile(policy: str) -> None:
    bench = Bench(policy, 9)

    for _ in range(NUM_OPERATIONS // 3):
        bench.any_operation()
        left = set(bench.waiting)
        met: list[Request] = []
        walk = bench.queue.candidates()
        for request in walk:
            met.append(request)
            if bench.rng.random() < 0.1:
                bench.admit(request)
        walk.close()
        assert len(met) == len(set(met))
        assert set(met) == left


@pytest.mark.parametrize("policy", ["lpm", "fcfs", "hrrn"])
def test_every_eighth_admission_goes_to_the_oldest_whatever_has_begun(policy: str) -> None:
    bench = Bench(policy, 3)
    for place in range(200):
        while len(bench.waiting) < 30:
            bench.arrive()
        walk = bench.queue.candidates()
        request = next(walk)
        walk.close()
        if place % 8 == 7:
            oldest = min(
                bench.waiting,
                key=lambda r: (-r.message.priority, r.num_retractions == 0, r.number),
            )
            assert request is oldest
        bench.admit(request)


def test_who_has_waited_beyond_the_bound_comes_first_whatever_has_begun() -> None:
    bench = Bench("lpm", 5, max_wait_seconds=1000.0)
    for _ in range(20):
        bench.arrive()
    old = set(bench.waiting)
    bench.now += 5000.0
    for _ in range(10):
        bench.arrive()
        bench.admit(list(bench.waiting)[-1])
        bench.arrive()

    first = bench.order()[: len(old)]

    assert [r.number for r in first] == sorted(r.number for r in old)


def test_programs_beyond_the_bound_are_forgotten_and_begin_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(program_order, "MAX_KNOWN_PROGRAMS", 3)
    bench = Bench("lpm", 6, ageing_stride=NEVER)

    for _ in range(NUM_OPERATIONS):
        bench.any_operation()
        assert set(bench.order()) == set(bench.waiting)
