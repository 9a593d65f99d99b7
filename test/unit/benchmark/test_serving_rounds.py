"""The order of a run, with peers made up in the test and no process started."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from serving.answers import Answer, Answers, CaseTimeout, NotAvailable
from serving.cases import QUICK, PromptSource, Workload
from serving.contestants import Contestant
from serving.records import Record, ResultsFile
from serving.rounds import Plan, Run
from serving.work import ModelShape

SHAPE = ModelShape(
    hidden=4, intermediate=8, layers=2, heads=2, kv_heads=1, head_dim=2, vocabulary=10
)


class WordSource(PromptSource):
    """A word is a token."""

    def __init__(self) -> None:
        pass

    def count_tokens(self, text: str) -> int:
        return len(text.split())

    def text(self, num_tokens: int, seed: str) -> str:
        return f" {seed}" * num_tokens


class FakePeer:
    """Answers at once and notes what it was asked."""

    def __init__(self, name: str, log: list[str], wall: float, fault: Exception | None) -> None:
        self.pid = os.getpid()
        self._name, self._log, self._wall, self._fault = name, log, wall, fault

    def run(self, workload: Workload, timeout_seconds: float) -> Answers:
        self._log.append(f"{self._name}{workload.case}")
        if self._fault is not None and workload.case != "F":
            raise self._fault
        answer = Answer(
            self._wall / 2, self._wall, workload.max_tokens, workload.prompt_tokens, 0, ""
        )
        return Answers(self._wall, [answer] * len(workload.prompts))

    def stop(self) -> None:
        self._log.append(f"{self._name} stops")


class Bench:
    """A run over fake peers x and y in a results file."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.log: list[str] = []

    def contestant(
        self, name: str, *, wall: float = 0.1, fault: Exception | None = None
    ) -> Contestant:
        start: Callable[[], FakePeer] = lambda: FakePeer(name, self.log, wall, fault)  # noqa: E731
        return Contestant(name, "bf16", "ABCDEF", 1000.0, start)

    def run(
        self, *contestants: Contestant, cases: str = "A", rounds: int = 2, resume: bool = False
    ) -> list[Record]:
        plan = Plan(list(contestants), cases, rounds, QUICK, 5.0, 9.0, 2)
        limits = {"read_weights_gib_2": 1.0, "gemm_bf16_gflops_2": 1.0}
        results = ResultsFile(self.file, resume=resume)
        Run(
            plan, WordSource(), SHAPE, results, lambda n: Record("machine", n, "limits", limits)
        ).run()
        return results.records


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path / "results.jsonl")


def test_contestants_take_turns_in_every_round(bench: Bench) -> None:
    bench.run(bench.contestant("x"), bench.contestant("y"))

    one_round = ["xF", "xA", "x stops", "yF", "yA", "y stops"]
    assert bench.log == one_round * 2


def test_slow_case_is_not_repeated(bench: Bench) -> None:
    bench.run(bench.contestant("x", wall=6.0), cases="AF")

    assert bench.log == ["xF", "xA", "x stops", "xF", "x stops"]


def test_unavailable_case_is_recorded_and_the_others_go_on(bench: Bench) -> None:
    records = bench.run(bench.contestant("x", fault=NotAvailable("no")), cases="AB", rounds=1)

    problems = [one.problem for one in records if one.case in "AB"]
    assert problems == ["not available (no)"] * 2


def test_peer_that_is_cut_off_is_stopped_and_runs_no_other_case(bench: Bench) -> None:
    bench.run(bench.contestant("x", fault=CaseTimeout("over 9 s")), cases="AB", rounds=1)

    assert bench.log == ["xF", "xA", "x stops"]


def test_contestant_that_does_not_start_is_tried_once_with_its_reason(bench: Bench) -> None:
    def fail() -> FakePeer:
        bench.log.append("try")
        raise RuntimeError("ended with status 2: usage: ...\nerror: unknown flag\n")

    records = bench.run(Contestant("x", "bf16", "AF", 1.0, fail))

    assert bench.log == ["try"]
    assert records[-1].problem == "does not start: error: unknown flag"


def test_missing_contestant_is_not_started(bench: Bench) -> None:
    def fail() -> FakePeer:
        raise AssertionError("started")

    assert bench.run(Contestant("x", "bf16", "AF", 1.0, fail, missing="no file")) == []


def test_resumed_run_measures_only_what_is_missing(bench: Bench) -> None:
    bench.run(bench.contestant("x"), rounds=1)
    bench.log.clear()

    records = bench.run(bench.contestant("x"), bench.contestant("y"), rounds=1, resume=True)

    assert bench.log == ["yF", "yA", "y stops"]
    assert {one.contestant for one in records} == {"machine", "x", "y"}


def test_resumed_run_tries_a_failed_start_again(bench: Bench) -> None:
    def fail() -> FakePeer:
        raise RuntimeError("no such file")

    bench.run(Contestant("x", "bf16", "AF", 1.0, fail), rounds=1)

    records = bench.run(bench.contestant("x"), rounds=1, resume=True)

    assert bench.log == ["xF", "xA", "x stops"]
    assert all(one.problem is None for one in records)


def test_wrong_token_count_makes_a_round_incomparable(bench: Bench) -> None:
    class Short(FakePeer):
        def run(self, workload: Workload, timeout_seconds: float) -> Answers:
            return Answers(1.0, [Answer(0.5, 1.0, 3, workload.prompt_tokens, 0, "")])

    records = bench.run(
        Contestant("x", "bf16", "A", 1.0, lambda: Short("x", [], 0.1, None)), rounds=1
    )

    assert records[-1].problem == "output of 3 tokens, 16 expected"


def test_share_of_the_limit_is_recorded(bench: Bench) -> None:
    records = bench.run(bench.contestant("x"), rounds=1)

    # Half of 0.1 s for 15 steps, of 1000 bytes and 24 tokens of 16 bytes, at 1 GiB/s.
    seconds = 0.05 / 15
    assert records[-1].figures["limit_share"] == pytest.approx((1000 + 24 * 16) / 2**30 / seconds)
