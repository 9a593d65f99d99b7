"""Whole simulations of small traces on a slow machine."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from simulation.applications import APPLICATIONS
from simulation.command import main
from simulation.cost_model import StepLoad
from simulation.measures import Slo, measure, weighted_distribution
from simulation.optimum import best_hits, working_set_tokens
from simulation.records import RunRecords
from simulation.scheduler_settings import every_combination
from simulation.setup import Setup
from simulation.simulator import Simulator
from simulation.trace import Span, Trace, TraceRequest
from simulation.workloads import Arrivals, make_trace

ROUNDING = 1e-9


class TenMilliseconds:
    """Every step takes 10 ms."""

    def seconds(self, load: StepLoad) -> float:
        return 0.01


def run(trace: Trace, pool_tokens: int = 100_000, **setup: object) -> RunRecords:
    defaults = Setup(cost=TenMilliseconds(), pool_tokens=pool_tokens, context_length=8_192)
    return Simulator(trace, replace(defaults, **setup)).run()  # type: ignore[arg-type]


def small_trace(name: str, num_requests: int = 40, rate: float = 40.0) -> Trace:
    arrivals = Arrivals(requests_per_second=rate, burstiness=2.0)
    return make_trace(name, APPLICATIONS[name], num_requests, arrivals, seed=5)


@pytest.mark.parametrize("name", APPLICATIONS)
def test_every_request_ends_with_its_whole_answer(name: str) -> None:
    trace = small_trace(name)

    records = run(trace, pool_tokens=working_set_tokens(trace) // 2)

    assert records.requests.keys() == trace.by_id.keys()
    for one in records.requests.values():
        assert one.outcome == ("stop" if one.request.ends_by_stop else "length")
        assert one.num_output == one.request.num_output
        assert one.admitted is not None and one.first_token is not None
        assert one.last_token is not None
        assert one.due <= one.admitted < one.first_token <= one.last_token


@pytest.mark.parametrize("name", APPLICATIONS)
def test_no_run_hits_more_than_the_offline_optimum(name: str) -> None:
    trace = small_trace(name)
    pool_tokens = working_set_tokens(trace) // 3
    bound = best_hits(trace, pool_tokens, 1, 8_192)

    for policy in ("lpm", "fcfs"):
        records = run(trace, pool_tokens, overrides={"policy": policy}, queue_depth=30)

        figures = measure(records, bound, Slo(), {})
        assert 0 < figures.hit_rate <= bound.rate + ROUNDING


def test_the_optimum_of_a_hand_made_tree() -> None:
    prompts = [(Span(1, 100), Span(k, 10)) for k in (2, 3)] + [(Span(4, 50),)]
    # In this order a pool of 130 loses the first prefix before its second use.
    order = [prompts[0], prompts[2], prompts[1]]
    trace = Trace(
        [
            TraceRequest(id=str(k), prompt=prompt, output=5, max_tokens=9)
            for k, prompt in enumerate(order)
        ]
    )

    bound = best_hits(trace, 130, 1, 8_192)

    assert (bound.prompt_tokens, bound.cached_tokens) == (270, 100)
    assert working_set_tokens(trace) == 100 + 2 * 15 + 55


def test_the_same_seed_gives_the_same_run_with_or_without_arrays() -> None:
    trace = small_trace("agents")

    first, again, full = run(trace), run(trace), run(trace, full_launch=True, stream=False)

    assert first.requests.keys() == again.requests.keys()
    for one, other, third in zip(
        first.requests.values(), again.requests.values(), full.requests.values(), strict=True
    ):
        times = (one.due, one.admitted, one.first_token, one.ended, one.cached_tokens)
        assert times == (
            other.due, other.admitted, other.first_token, other.ended, other.cached_tokens
        )  # fmt: skip
        assert times == (
            third.due, third.admitted, third.first_token, third.ended, third.cached_tokens
        )  # fmt: skip
    assert first.counters == again.counters


def test_waiting_counts_from_when_a_request_was_due() -> None:
    # Both come due inside the first step, which ends at 0.01; each answer is one token.
    requests = [
        TraceRequest(id="a", prompt=(Span(1, 5),), output=1, max_tokens=2, arrival=0.0),
        TraceRequest(id="b", prompt=(Span(2, 5),), output=1, max_tokens=2, arrival=0.004),
    ]

    records = run(Trace(requests))

    second = records.requests["b"]
    assert second.due == 0.004 and second.admitted == 0.01
    assert second.first_token == pytest.approx(0.02)


def test_a_child_is_due_its_delay_after_its_parent_and_finds_the_answer_cached() -> None:
    trace = small_trace("multi-turn", 2)
    child = next(one for one in trace.requests if one.after)
    parent = trace.by_id[child.after[0]]

    records = run(trace)

    ended = records.requests[parent.id].ended
    assert ended is not None
    assert records.requests[child.id].due == pytest.approx(ended + child.delay)
    # All of the parent's prompt and its answer, but for the last token, which is never computed.
    expected = trace.prompt_length(parent) + parent.num_output - 1
    assert records.requests[child.id].cached_tokens == expected


def test_what_no_context_can_hold_is_refused_and_its_children_are_skipped() -> None:
    long = TraceRequest(id="a", prompt=(Span(1, 9_000),), output=10, max_tokens=20)
    child = TraceRequest(id="b", prompt=(Span(2, 9),), output=1, max_tokens=2, after=("a",))
    fine = TraceRequest(id="c", prompt=(Span(3, 9),), output=1, max_tokens=2, arrival=3.0)

    records = run(Trace([long, child, fine]))

    outcomes = {name: one.outcome for name, one in records.requests.items()}
    assert outcomes == {"a": "refused", "b": "skipped", "c": "stop"}


def test_retracted_requests_still_end_with_their_whole_answer() -> None:
    requests = [
        TraceRequest(id=str(k), prompt=(Span(k, 20),), output=60, max_tokens=100) for k in range(12)
    ]

    records = run(Trace(requests), 300, overrides={"admission": "prompt-only"})

    figures = measure(records, best_hits(Trace(requests), 300, 1, 8_192), Slo(), {})
    assert figures.retractions >= figures.retracted_requests > 0
    assert figures.outcomes == {"stop": 12}


def test_what_the_scheduler_refuses_is_counted_as_aborted_and_its_children_are_skipped() -> None:
    parents = [
        TraceRequest(id=str(k), prompt=(Span(k, 9),), output=3, max_tokens=4) for k in range(6)
    ]
    child = TraceRequest(id="child", prompt=(Span(9, 9),), output=3, max_tokens=4, after=("5",))

    records = run(
        Trace([*parents, child]), overrides={"max_queued_requests": 2, "max_running_requests": 1}
    )

    outcomes = [one.outcome for one in records.requests.values()]
    assert sorted(map(str, outcomes)) == ["abort"] * 3 + ["skipped"] + ["stop"] * 3
    assert records.requests["child"].outcome == "skipped"


def test_goodput_counts_what_meets_every_limit() -> None:
    trace = small_trace("few-shot")
    records = run(trace)
    bound = best_hits(trace, 100_000, 1, 8_192)

    easy = measure(records, bound, Slo(ttft_seconds=1e6), {})
    hard = measure(records, bound, Slo(ttft_seconds=1e6, tpot_seconds=0.001), {})

    assert easy.slo_share == 1.0
    assert easy.goodput_per_second == pytest.approx(easy.requests_per_second)
    single = sum(one.num_output == 1 for one in records.requests.values())
    assert hard.slo_share == single / len(trace.requests)


def test_percentiles_of_counted_values() -> None:
    found = weighted_distribution({0.1: 98, 0.5: 1, 2.0: 1})

    assert (found.p50, found.p90, found.p99, found.max) == (0.1, 0.1, 0.5, 2.0)
    assert found.count == 100 and found.mean == pytest.approx(0.123)


def test_settings_are_combined_and_checked_by_the_schedulers_own_fields() -> None:
    runs = every_combination(
        ["chunk_tokens=none"], ["policy=lpm,fcfs", "conservativeness=0.5,1"], [], [None]
    )

    assert len(runs) == 4
    assert runs[1].labels == {"policy": "lpm", "conservativeness": "1"}
    assert runs[1].overrides == {"chunk_tokens": None, "policy": "lpm", "conservativeness": 1.0}
    for wrong in ("no_field=1", "policy=alphabetical", "chunk_tokens=many"):
        with pytest.raises(ValueError, match=wrong.split("=")[0]):
            every_combination([wrong], [], [], [None])


def test_named_runs_are_alternatives_with_several_settings_each() -> None:
    named = ["old:policy=fcfs", "new:policy=lpm,ageing_stride=4"]

    runs = every_combination(["chunk_tokens=64"], ["admission=ratio,learnt"], named, [None])

    assert [one.labels["run"] for one in runs] == ["old", "new", "old", "new"]
    assert runs[3].overrides == {
        "chunk_tokens": 64,
        "admission": "learnt",
        "policy": "lpm",
        "ageing_stride": 4,
    }
    with pytest.raises(ValueError, match="nameless"):
        every_combination([], [], ["nameless"], [None])


@pytest.mark.parametrize("asking", ["next", "exact"])
def test_how_clients_ask_changes_their_limits_and_nothing_else(asking: str) -> None:
    arrivals = Arrivals(requests_per_second=40.0)
    make = APPLICATIONS["agents"]
    generous = make_trace("agents", make, 60, arrivals, 5).requests
    asked = make_trace("agents", make, 60, arrivals, 5, asking).requests

    assert [replace(one, max_tokens=1000) for one in asked] == [
        replace(one, max_tokens=1000) for one in generous
    ]
    assert all(a.max_tokens <= b.max_tokens for a, b in zip(asked, generous, strict=True))
    if asking == "exact":
        assert all(one.max_tokens == one.output for one in asked)


def test_a_comparison_end_to_end(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    flags = ["--requests", "40", "--pool-share", "0.5", "--quiet", "--policies", "lpm,fcfs"]

    made = main([*flags, "--workload", "self-consistency", "--save-trace", str(file), "--json"])
    first = json.loads(capsys.readouterr().out)
    replayed = main([*flags, "--trace", str(file), "--queue-depth", "none,20"])
    table = capsys.readouterr().out

    assert made == replayed == 0
    assert [one["labels"]["policy"] for one in first] == ["lpm", "fcfs"]
    assert all(one["outcomes"].get("abort", 0) == 0 for one in first)
    assert all(0 < one["share_of_optimum"] <= 1 + ROUNDING for one in first)
    assert len(table.splitlines()) == 2 + 4  # two policies, two depths
    assert "TTFT p99" in table and "of optimum" in table


def test_plots_are_saved_for_each_workload(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="needs matplotlib")
    flags = ["--requests", "20", "--workload", "few-shot,agents", "--policies", "lpm,fcfs"]

    assert main([*flags, "--quiet", "--plots", str(tmp_path)]) == 0

    names = sorted(file.name for file in tmp_path.glob("*.png"))
    assert names == ["agents.png", "comparison.png", "few-shot.png"]


def test_a_wrong_flag_ends_with_a_message(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--policies", "alphabetical"]) == 2
    assert "alphabetical" in capsys.readouterr().err
    assert main(["--trace", "nowhere.jsonl"]) == 2
    assert "nowhere.jsonl" in capsys.readouterr().err
