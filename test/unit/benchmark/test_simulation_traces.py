"""Traces of the simulator: files, checks, workloads, arrivals and dependencies."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from simulation.applications import APPLICATIONS
from simulation.feeder import Feeder
from simulation.span_tokens import EOS_TOKEN, MAX_SPAN, new_span_tokens
from simulation.trace import Ids, OutputOf, Span, Trace, TraceError, TraceRequest
from simulation.trace_file import read_trace, write_trace
from simulation.workloads import Arrivals, make_trace

POISSON = Arrivals(requests_per_second=5.0)


def chain() -> Trace:
    """Two turns of a chat, then one that waits for both and another that spells its tokens out."""
    first = TraceRequest(id="a", prompt=(Span(1, 10),), output=4, max_tokens=9, arrival=1.5)
    second = TraceRequest(
        id="b",
        prompt=(Span(1, 10), OutputOf("a"), Span(2, 3)),
        output=5,
        max_tokens=5,
        after=("a",),
        delay=0.25,
        program="chat",
    )
    third = TraceRequest(
        id="c",
        prompt=(OutputOf("b"), Ids((7, 8, 9))),
        output=(4, 5, 6),
        max_tokens=8,
        after=("a", "b"),
        priority=2,
        namespace="tenant",
    )
    exact = TraceRequest(
        id="d", prompt=(Span(3, 2),), output=6, max_tokens=6, ignore_eos=True, arrival=9.0
    )
    return Trace([first, second, third, exact])


@pytest.mark.parametrize("name", ["chain", *APPLICATIONS])
def test_a_trace_comes_back_from_its_file_as_it_was(name: str, tmp_path: Path) -> None:
    if name == "chain":
        trace = chain()
    else:
        trace = make_trace(name, APPLICATIONS[name], 60, POISSON, seed=3)

    write_trace(trace, tmp_path / "trace.jsonl")

    assert list(read_trace(tmp_path / "trace.jsonl").requests) == list(trace.requests)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ('{"id": 1, "prompt": [[1, 2]], "output": 3}', "max_tokens missing"),
        ('{"id": 1, "prompt": [[1, 2]], "output": 3, "max_tokens": 4, "maxtokens": 4}', "unknown"),
        ('{"id": 1, "prompt": [[1, 2, 3]], "output": 3, "max_tokens": 4}', "none of"),
        ('{"id": 1, "prompt": [[-1, 2]], "output": 3, "max_tokens": 4}', "none of"),
        ('{"id": 1, "prompt": [[1, 2]], "output": 3, "max_tokens": 4', "trace.jsonl:1"),
        ("[1, 2]", "not a JSON object"),
        ('{"id": 1, "prompt": [], "output": 3, "max_tokens": 4}', "no prompt"),
        ('{"id": 1, "prompt": [[1, 2]], "output": 0, "max_tokens": 4}', "at least 1"),
        ('{"id": 1, "prompt": [[1, 2]], "output": 3, "max_tokens": 4, "after": [0]}', "'0'"),
        (
            '{"id": 1, "prompt": [[1, 2]], "output": 3, "max_tokens": 4, "ignore_eos": true}',
            "output must be max_tokens",
        ),
    ],
)
def test_a_line_that_is_no_request_is_named(line: str, complaint: str, tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    file.write_text(line + "\n", encoding="utf-8")

    with pytest.raises(TraceError, match=complaint):
        read_trace(file)


def test_an_answer_may_be_quoted_only_by_a_request_that_waits_for_it() -> None:
    first = TraceRequest(id="a", prompt=(Span(1, 4),), output=4, max_tokens=9)
    hasty = TraceRequest(id="b", prompt=(OutputOf("a"),), output=4, max_tokens=9)

    with pytest.raises(TraceError, match="does not wait for"):
        Trace([first, hasty])


def test_a_longer_span_begins_with_the_shorter_one_and_none_holds_the_stop_token() -> None:
    long = new_span_tokens(MAX_SPAN, 5_000)

    assert (long[:1_200] == new_span_tokens(MAX_SPAN, 1_200)).all()
    assert long[0] != new_span_tokens(MAX_SPAN - 1, 1)[0]
    assert long.min() > EOS_TOKEN


def test_a_prompt_quotes_the_whole_answer_with_its_stop() -> None:
    trace = chain()
    first, second, *_ = trace.requests

    answer, prompt = trace.output_tokens(first), trace.prompt_tokens(second)

    assert answer[-1] == EOS_TOKEN and len(answer) == 4
    assert (prompt[:10] == trace.prompt_tokens(first)).all()
    assert (prompt[10:14] == answer).all()
    assert len(prompt) == trace.prompt_length(second) == 17
    assert trace.output_tokens(second)[-1] != EOS_TOKEN  # cut by its limit


@pytest.mark.parametrize("name", APPLICATIONS)
def test_a_seed_fixes_a_workload(name: str) -> None:
    first = make_trace(name, APPLICATIONS[name], 50, POISSON, seed=1)
    again = make_trace(name, APPLICATIONS[name], 50, POISSON, seed=1)
    other = make_trace(name, APPLICATIONS[name], 50, POISSON, seed=2)

    assert list(first.requests) == list(again.requests)
    assert list(first.requests) != list(other.requests)
    assert len(first.requests) >= 50


@pytest.mark.parametrize("burstiness", [1.0, 4.0])
def test_arrivals_have_the_rate_and_the_burstiness_that_were_asked_for(burstiness: float) -> None:
    arrivals = Arrivals(requests_per_second=8.0, burstiness=burstiness)

    trace = make_trace("few-shot", APPLICATIONS["few-shot"], 6_000, arrivals, seed=0)

    intervals = np.diff([request.arrival for request in trace.requests])
    assert intervals.mean() == pytest.approx(1 / 8, rel=0.15)
    assert intervals.std() / intervals.mean() == pytest.approx(burstiness, rel=0.15)


def test_a_child_comes_its_delay_after_the_last_of_its_parents() -> None:
    trace = chain()
    first, second, third, exact = trace.requests
    feeder = Feeder(trace)

    assert feeder.take_due(1.4, 0) == []
    assert feeder.next_due() == 1.5
    assert [(one.request, one.due) for one in feeder.take_due(2.0, 0)] == [(first, 1.5)]
    feeder.ended(first, 3.0)
    assert [(one.request, one.due) for one in feeder.take_due(9.5, 0)] == [
        (second, 3.25),
        (exact, 9.0),
    ]
    feeder.ended(second, 10.0)
    assert [one.request for one in feeder.take_due(10.0, 0)] == [third]
    assert feeder.next_due() is None


def test_what_depends_on_a_failed_request_is_skipped_once() -> None:
    trace = chain()
    first, second, third, _ = trace.requests
    feeder = Feeder(trace)
    feeder.take_due(2.0, 0)

    skipped = feeder.failed(first)

    assert sorted(one.id for one in skipped) == [second.id, third.id]
    assert feeder.failed(second) == []


def test_a_queue_depth_hands_out_what_is_missing_from_the_queue() -> None:
    trace = make_trace("few-shot", APPLICATIONS["few-shot"], 20, POISSON, seed=0)
    feeder = Feeder(trace, queue_depth=6)

    assert len(feeder.take_due(0.0, 0)) == 6
    assert len(feeder.take_due(0.5, 4)) == 2
    assert feeder.take_due(0.5, 7) == []
    assert len(feeder.take_due(1.0, 0)) == 6
    assert len(feeder.take_due(1.0, 0)) == 6
    assert feeder.take_due(1.0, 0) == []
