"""The benchmark of programs: what it runs, compares and prints."""

from __future__ import annotations

import json
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from random import Random
from threading import Thread
from typing import Any

import pytest
from programs import main
from programs_bench.contestants import NO_TREE, TREE, Contestant, peer_server, usable_peers
from programs_bench.report import as_json, as_table, put_together
from programs_bench.rounds import OutputsDiffer, Result, run_rounds
from programs_bench.workloads import WORKLOADS, Workload
from serving.contestants import Contestant as ServingContestant
from serving.http_peer import HttpPeer
from support.fake_language_backend import FakeBackend

from runtime.lang.transcript import Prompt

RECORD = '{"place": "Dunmere", "year": 1871, "built": "market", "people": [], "is_open": true}'


def _answer(prompt: Prompt) -> str:
    return RECORD if prompt.messages else f" {len(prompt.text) % 10}"


def _contestant(name: str, needs: tuple[str | None, ...], backend: Any) -> Contestant:
    return Contestant(name, dict.fromkeys(needs, backend))


ALL = (None, "select", "messages", "regex")


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

    results = list(run_rounds(workloads, contestants, range(4, 7), quick=True))

    assert [(one.workload.name, one.contestant) for one in results] == [
        ("hellaswag", TREE),
        ("few-shot", TREE),
        ("few-shot", "peer"),
    ]
    assert all(sorted(one.rates) == [4, 5, 6] for one in results)
    assert peer.log.count("score") == 0


def test_the_run_ends_where_the_tree_changes_what_is_written() -> None:
    honest = FakeBackend(_answer)
    wrong = FakeBackend(lambda prompt: _answer(prompt) + "!")
    contestants = [_contestant(TREE, ALL, wrong), _contestant(NO_TREE, ALL, honest)]

    with pytest.raises(OutputsDiffer, match=r"llm-judge, program 0: .*!"):
        list(run_rounds([WORKLOADS["llm-judge"]], contestants, range(1), quick=True))


def test_the_texts_of_a_round_follow_from_its_number() -> None:
    first, again, other = FakeBackend(_answer), FakeBackend(_answer), FakeBackend(_answer)
    backends = ((first, range(1, 2)), (again, range(1, 2)), (other, range(2, 3)))

    for backend, rounds in backends:
        contestant = _contestant(TREE, ALL, backend)
        list(run_rounds([WORKLOADS["rag"]], [contestant], rounds, quick=True))

    def texts(backend: FakeBackend) -> list[str]:
        return sorted(prompt.text for prompt in backend.prompts)

    assert texts(first) == texts(again)
    assert texts(first) != texts(other)


@pytest.mark.parametrize(("name", "calls_before"), [("json", 5), ("chat-short", 0)])
def test_grammars_are_met_once_before_the_clock_starts(name: str, calls_before: int) -> None:
    backend = FakeBackend(_answer)
    workload = WORKLOADS[name]

    list(run_rounds([workload], [_contestant(TREE, ALL, backend)], range(1), quick=True))
    alone = FakeBackend(_answer)
    workload.program.run_batch(workload.arguments(Random(f"{name} 0"), 2), backend=alone)

    few_shot = 2  # the calls that make connections
    assert len(backend.prompts) == few_shot + calls_before + len(alone.prompts)


def _result(workload: Workload, contestant: str, *rates: float) -> Result:
    return Result(workload, contestant, dict(enumerate(rates)))


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
    assert found["geometric_mean"][NO_TREE]["paper"]["value"] == pytest.approx(2.0)
    assert table[2] == "| few-shot, 32 | 9.00 [8.00-30.00] | 3.00 [2.00-3.00] | 4.00 |"
    assert table[-2] == "| geometric mean over the paper's set |  |  | 2.00 of 2 |"


def test_a_peer_without_a_program_that_it_can_run_has_an_empty_cell() -> None:
    results = [
        _result(WORKLOADS["hellaswag"], TREE, 5.0),
        _result(WORKLOADS["rag"], TREE, 0.4),
        _result(WORKLOADS["rag"], "peer", 0.2),
    ]

    table = as_table(results).splitlines()

    assert table[2] == "| hellaswag, 16 | 5.00 [5.00-5.00] | - | - |"
    assert table[3] == "| rag, 12 | 0.400 [0.400-0.400] | 0.200 [0.200-0.200] | 2.00 |"
    assert table[-2] == "| geometric mean over the paper's set |  |  | 2.00 of 1 |"


def test_programs_that_the_paper_does_not_have_count_in_the_mean_over_all_alone() -> None:
    results = [
        _result(WORKLOADS[name], contestant, rate)
        for name, tree_rate in (("rag", 4.0), ("rag-hops", 1.0))
        for contestant, rate in ((TREE, tree_rate), (NO_TREE, 1.0))
    ]

    means = as_json(results)["geometric_mean"][NO_TREE]

    assert means["paper"] == {"value": pytest.approx(4.0), "programs": 1}
    assert means["all"] == {"value": pytest.approx(2.0), "programs": 2}


def test_ratios_compare_only_rounds_that_both_have() -> None:
    rag = WORKLOADS["rag"]
    results = [
        Result(rag, TREE, {0: 8.0, 1: 8.0, 3: 6.0}),
        Result(rag, NO_TREE, {0: 2.0, 1: 4.0}),
        Result(rag, "peer", {3: 1.0}),
    ]

    found = as_json(results)["times_faster"]

    assert found == {NO_TREE: {"rag": 3.0}, "peer": {"rag": 6.0}}


def test_runs_put_together_are_as_one_run_of_all_their_rounds() -> None:
    rag, few = WORKLOADS["rag"], WORKLOADS["few-shot"]
    runs = [
        [Result(rag, TREE, {0: 8.0}), Result(rag, NO_TREE, {0: 2.0})],
        [Result(few, TREE, {0: 5.0})],
        [Result(rag, TREE, {1: 6.0}), Result(rag, NO_TREE, {1: 3.0})],
    ]

    results = put_together(json.loads(json.dumps(as_json(run))) for run in runs)

    assert results == [
        Result(few, TREE, {0: 5.0}),
        Result(rag, TREE, {0: 8.0, 1: 6.0}),
        Result(rag, NO_TREE, {0: 2.0, 1: 3.0}),
    ]


def test_the_command_prints_the_table_of_several_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = []
    for number, rate in enumerate((4.0, 8.0)):
        run = as_json([Result(WORKLOADS["rag"], TREE, {number: rate})])
        files.append(tmp_path / f"{number}.json")
        files[-1].write_text(json.dumps({"quick": False, **run}), "utf-8")

    status = main(["--report", *map(str, files)])

    assert status == 0
    assert "| rag, 12 | 6.00 [4.00-8.00] |" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        ({"quick": True, "programs_per_second": {}}, "a run with --quick has no figures"),
        ([], "what --json printed is expected"),
        ({"programs_per_second": {"chess": {}}}, "there is no program 'chess'"),
    ],
)
def test_a_run_that_has_no_place_in_the_table_is_refused(
    found: Any, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "run.json"
    file.write_text(json.dumps(found), "utf-8")

    status = main(["--report", str(file)])

    assert status == 1
    assert reason in capsys.readouterr().err


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


class _Completions(BaseHTTPRequestHandler):
    """Goes on with a dot after every prompt, and as able as its flags say."""

    echoes = holds_to_regex = True
    scores_like_chat = False

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        prompts = body["prompt"] if isinstance(body["prompt"], list) else [body["prompt"]]
        text = "QX-407" if "structured_outputs" in body and self.holds_to_regex else "."
        choices = [
            {
                "index": index,
                "text": text,
                "finish_reason": "length",
                "logprobs": self._scores(one) if "logprobs" in body else None,
            }
            for index, one in enumerate(prompts)
        ]
        answer = {"id": "a", "object": "text_completion", "created": 1, "model": "model"}
        data = json.dumps({**answer, "choices": choices}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _scores(self, prompt: str) -> dict[str, Any] | None:
        if not self.echoes:
            return None
        if self.scores_like_chat:
            return {"content": [{"token": ".", "logprob": -1.0, "top_logprobs": []}]}
        tokens = [*prompt, "."]
        values = [None, *(-1.0 for _ in tokens[1:])]
        offsets = list(range(len(tokens)))
        return {"tokens": tokens, "token_logprobs": values, "text_offset": offsets}

    def log_message(self, format: str, *args: Any) -> None:
        pass


class _Peer(HttpPeer):
    """A peer without a process."""

    def __init__(self, base_url: str) -> None:
        self._base_url, self._model, self.is_stopped = base_url, "model", False

    def stop(self) -> None:
        self.is_stopped = True


@pytest.mark.parametrize(
    ("flags", "lacks"),
    [
        ({}, set()),
        ({"echoes": False}, {"hellaswag"}),
        ({"scores_like_chat": True}, {"hellaswag"}),
        ({"holds_to_regex": False}, {"json"}),
    ],
)
def test_a_peer_takes_the_programs_that_its_server_can_do(
    flags: dict[str, bool], lacks: set[str]
) -> None:
    handler = type("Handler", (_Completions,), flags)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        running = _Peer(f"http://127.0.0.1:{server.server_port}")

        with peer_server(_peer(start=lambda: running)) as contestant:
            able = {name for name, one in WORKLOADS.items() if contestant.backend_for(one)}
        server.shutdown()

    assert set(WORKLOADS) - able == lacks
    assert running.is_stopped
