"""The benchmark of programs: what it runs, compares and prints."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest
from programs_bench.contestants import NO_TREE, TREE, Contestant, peer_server, usable_peers
from programs_bench.report import as_json, as_table
from programs_bench.rounds import OutputsDiffer, Result, run_rounds
from programs_bench.workloads import WORKLOADS, Workload
from serving.contestants import Contestant as ServingContestant
from support.fake_language_backend import FakeBackend

from runtime.lang.transcript import Prompt

RECORD = '{"place": "Dunmere", "year": 1871, "built": "market", "people": [], "is_open": true}'


def _answer(prompt: Prompt) -> str:
    return RECORD if prompt.messages else f" {len(prompt.text) % 10}"


def _contestant(name: str, needs: tuple[str | None, ...], backend: Any) -> Contestant:
    return Contestant(name, dict.fromkeys(needs, backend))


ALL = (None, "select", "messages")


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_program_runs_to_its_end_with_the_arguments_of_its_workload(name: str) -> None:
    workload = WORKLOADS[name]
    backend = FakeBackend(_answer)

    states = workload.program.run_batch(workload.arguments(Random(0), 3), backend=backend)

    assert len(states) == 3
    assert len(backend.prompts) >= 3
    assert all(value is not None for state in states for value in state.variables().values())


@pytest.mark.parametrize("name", WORKLOADS)
def test_rounds_have_texts_of_their_own_and_can_be_repeated(name: str) -> None:
    arguments = WORKLOADS[name].arguments

    assert arguments(Random("a"), 2) == arguments(Random("a"), 2)
    assert arguments(Random("a"), 2) != arguments(Random("b"), 2)


def test_every_contestant_runs_what_it_can_in_each_round() -> None:
    tree, peer = FakeBackend(_answer), FakeBackend(_answer)
    contestants = [_contestant(TREE, ALL, tree), _contestant("peer", (None,), peer)]
    workloads = [WORKLOADS["hellaswag"], WORKLOADS["few-shot"]]

    results = list(run_rounds(workloads, contestants, 3, quick=True))

    assert [(one.workload.name, one.contestant) for one in results] == [
        ("hellaswag", TREE),
        ("few-shot", TREE),
        ("few-shot", "peer"),
    ]
    assert all(len(one.rates) == 3 for one in results)
    assert peer.log.count("score") == 0


def test_the_run_ends_where_the_tree_changes_what_is_written() -> None:
    honest = FakeBackend(_answer)
    wrong = FakeBackend(lambda prompt: _answer(prompt) + "!")
    contestants = [_contestant(TREE, ALL, wrong), _contestant(NO_TREE, ALL, honest)]

    with pytest.raises(OutputsDiffer, match=r"llm-judge, program 0: .*!"):
        list(run_rounds([WORKLOADS["llm-judge"]], contestants, 1, quick=True))


def _result(workload: Workload, contestant: str, *rates: float) -> Result:
    return Result(workload, contestant, list(rates))


def test_ratios_are_medians_over_rounds_and_their_mean_is_geometric() -> None:
    few, rag = WORKLOADS["few-shot"], WORKLOADS["rag"]
    results = [
        _result(few, TREE, 8.0, 9.0, 30.0),
        _result(few, NO_TREE, 2.0, 3.0, 3.0),
        _result(rag, TREE, 1.0, 1.0, 1.0),
        _result(rag, NO_TREE, 1.0, 1.0, 1.0),
    ]

    found = as_json(results)
    table = as_table(results).splitlines()

    assert found["times_faster"][NO_TREE] == {"few-shot": 4.0, "rag": 1.0}
    assert found["geometric_mean"][NO_TREE] == pytest.approx(2.0)
    assert table[2] == "| few-shot, 32 | 9.00 [8.00-30.00] | 3.00 [2.00-3.00] | 4.00 |"
    assert table[-1] == "| geometric mean |  |  | 2.00 of 2 |"


def test_a_peer_without_a_program_that_it_can_run_has_an_empty_cell() -> None:
    results = [
        _result(WORKLOADS["hellaswag"], TREE, 5.0),
        _result(WORKLOADS["rag"], TREE, 4.0),
        _result(WORKLOADS["rag"], "peer", 2.0),
    ]

    table = as_table(results).splitlines()

    assert table[2] == "| hellaswag, 16 | 5.00 [5.00-5.00] | - | - |"
    assert table[-1] == "| geometric mean |  |  | 2.00 of 1 |"


def _peer(**changes: Any) -> ServingContestant:
    def start() -> Any:
        raise RuntimeError("no healthy server within 400 s")

    return replace(ServingContestant("vLLM bf16", "bf16", "A", 1.0, start), **changes)


@pytest.mark.parametrize(
    ("peer", "reason"),
    [(_peer(missing="no file vllm"), "not installed .no file vllm."), (_peer(), "no healthy")],
)
def test_a_peer_that_cannot_take_part_says_why(peer: ServingContestant, reason: str) -> None:
    with pytest.raises(RuntimeError, match=reason), peer_server(peer):
        pass


def test_only_peers_with_weights_of_our_form_are_asked() -> None:
    peers = [_peer(), _peer(name="other Q8_0", weights="8-bit"), _peer(name="ours bf16")]

    assert [one.name for one in usable_peers(peers)] == ["vLLM bf16"]
