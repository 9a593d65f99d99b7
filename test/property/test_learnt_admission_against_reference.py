"""The learnt rule's decisions against its definition, written out slowly, on random loads."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from support.scheduler_rig import SchedulerRig

from runtime.srt.memory.radix_node import RadixNode
from runtime.srt.scheduling.admission import RULES
from runtime.srt.scheduling.learnt_admission import LearntForecast
from runtime.srt.scheduling.length_history import EDGES, Kind, LengthHistory
from runtime.srt.scheduling.pool_forecast import HORIZON, LAST
from runtime.srt.scheduling.request import Request

ROUNDING = 1e-6  # closer than this to the room either answer is right


def share_longer(known: Sequence[Sequence[float]], running: Sequence[int], length: int) -> float:
    """Product-limit estimate of the share of outputs longer than length."""
    ended, cut = known
    share, lower = 1.0, 0.0
    for place, upper in enumerate(EDGES.tolist()):
        passed = cut[place] + sum(
            min(max((done - lower) / (upper - lower), 0.0), 1.0) for done in running
        )
        at_risk = sum(ended[place:]) + passed
        after = share * (1 - ended[place] / at_risk) if at_risk > 0 else share
        if length <= upper:
            return share + (after - share) * (length - lower) / (upper - lower)
        share, lower = after, upper
    return share


@dataclass
class Course:
    """One request: how likely it runs in each span and what it holds then."""

    kind: Kind | None
    shares: list[float]
    tokens: list[float]


class SlowForecast:
    """The definition. rig is set once there is one."""

    def __init__(self, history: LengthHistory) -> None:
        self.history = history
        self.rig: SchedulerRig | None = None
        self.active: list[Request] = []
        self.joined: list[tuple[Request, int]] = []
        self.courses: list[Course] | None = None

    def begin_step(self, active: Sequence[Request]) -> None:
        self.active, self.joined, self.courses = list(active), [], None

    def margin(self, newcomer: Request, prompt_tokens: int, room: int, z: float) -> float:
        """Return by how much the forecast stays below room; not below 0 if it fits."""
        to_come = sum(one.num_new_tokens_left + prompt_left(one) for one in self.active)
        to_come += sum(one.num_new_tokens_left + tokens for one, tokens in self.joined)
        if to_come + prompt_tokens + newcomer.num_new_tokens_left <= room:
            return 1.0
        if self.courses is None:
            self.courses = [self.course(one, self.held_after_prompt(one)) for one in self.active]
            self.held_now = sum(
                self.held_after_prompt(one) - prompt_left(one) for one in self.active
            )
            self.courses += [self.course(*one) for one in self.joined]
        courses = [*self.courses, self.course(newcomer, prompt_tokens)]
        before = sum(one.shares[0] * one.tokens[0] for one in self.courses) - self.held_now
        margins = [room - before - prompt_tokens]
        for span in range(len(HORIZON)):
            mean, variance, doubt = -self.held_now, 0.0, Counter[Kind | None]()
            for one in courses:
                share, tokens = one.shares[span], one.tokens[span]
                deviation = tokens * math.sqrt(max(share * (1 - share), 0.0))
                mean += share * tokens
                variance += deviation**2
                doubt[one.kind] += deviation
            for kind, deviations in doubt.items():
                ended, cut = self.history.counts(kind).tolist()
                variance += deviations**2 / max(sum(ended) + cut[0], 1.0)
            margins.append(room - mean - z * math.sqrt(variance))
        return min(margins)

    def admitted(self, newcomer: Request, prompt_tokens: int) -> None:
        self.joined.append((newcomer, prompt_tokens))
        if self.courses is not None:
            self.courses.append(self.course(newcomer, prompt_tokens))

    def course(self, request: Request, held_after_prompt: int) -> Course:
        kind, left = request.length_kind, request.num_new_tokens_left
        known = self.history.counts(kind).tolist()
        running = [len(one.output_ids) for one in self.active if one.length_kind == kind]
        done = len(request.output_ids)
        now = share_longer(known, running, done)
        shares = []
        for moment in HORIZON.tolist():
            share = share_longer(known, running, done + moment) / now if now > 1e-3 else 1.0
            shares.append(share if moment < left else 0.0)
        return Course(kind, shares, [held_after_prompt + min(last, left) for last in LAST.tolist()])

    def held_after_prompt(self, request: Request) -> int:
        """Tokens that its end will free: all but the nodes of the tree on the paths of others."""
        assert self.rig is not None
        lease = request.kv_lease
        others: set[RadixNode] = set()
        for other in self.rig.memory.open_leases():
            if other is not lease:
                others.update(path_of(other.node))
        shared = sum(node.num_tokens for node in path_of(lease.node) if node in others)
        return max(request.num_tokens, lease.num_allocated) - shared


def path_of(node: RadixNode | None) -> list[RadixNode]:
    path: list[RadixNode] = []
    while node is not None and node.parent is not None:
        path.append(node)
        node = node.parent
    return path


def prompt_left(request: Request) -> int:
    return max(request.num_tokens - request.kv_lease.num_allocated, 0)


class Compared(LearntForecast):
    """The learnt rule, each decision held against the definition."""

    def __init__(self, target_rate: float) -> None:
        super().__init__(target_rate)
        self.slow = SlowForecast(self._history)
        self.answers: Counter[bool] = Counter()
        self.num_forecasts = 0

    def begin_step(self, active: Sequence[Request]) -> None:
        super().begin_step(active)
        self.slow.begin_step(active)

    def fits(self, newcomer: Request, prompt_tokens: int, room: int) -> bool:
        answer = super().fits(newcomer, prompt_tokens, room)
        margin = self.slow.margin(newcomer, prompt_tokens, room, self._z)
        self.num_forecasts += self.slow.courses is not None
        if abs(margin) > ROUNDING:
            assert answer == (margin > 0), f"{answer}, margin {margin} of {room}"
        self.answers[answer] += 1
        return answer

    def admitted(self, newcomer: Request, prompt_tokens: int) -> None:
        super().admitted(newcomer, prompt_tokens)
        self.slow.admitted(newcomer, prompt_tokens)


@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize("seed", range(4))
def test_every_decision_is_that_of_the_definition(
    monkeypatch: pytest.MonkeyPatch, seed: int, page_size: int
) -> None:
    rules: list[Compared] = []

    def make(config: object) -> Compared:
        rules.append(Compared(0.01))
        return rules[-1]

    monkeypatch.setitem(RULES, "learnt", make)
    rng = random.Random(seed)
    rig = SchedulerRig(
        total_tokens=240,
        page_size=page_size,
        vocab_size=12,
        max_running_requests=10,
        eos_token_ids=frozenset({0}),
        admission="learnt",
    )
    (rule,) = rules
    rule.slow.rig = rig
    for number in range(90):
        prompt = [rng.randrange(1, 3) for _ in range(rng.randint(1, 30))]
        rig.submit(
            f"r{number}",
            prompt,
            max_new_tokens=rng.choice([6, 30, 60]),
            ignore_eos=rng.random() < 0.1,
        )
        for _ in range(rng.randint(0, 3)):
            rig.step()
    rig.run()

    assert all(one.finish is not None for one in rig.outcomes.values())
    assert rule.num_forecasts > 20
    assert rule.answers[True] > 20 and rule.answers[False] > 5
