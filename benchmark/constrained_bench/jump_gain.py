"""Case E with jump-forward and without it, and as many tokens without a grammar, in turns."""

from __future__ import annotations

import json
import statistics
from dataclasses import dataclass
from typing import Any

from serving.shipment import SHIPMENT_SCHEMA, is_valid_shipment, shipment_question
from serving.streamed_posts import StreamedAnswer, post_all

from .figures import Section
from .hostile_inputs import schema_fields
from .server import CHAT_PATH, Server, chat_body, count_jumped

MAX_TOKENS = 200
_TIMEOUT_SECONDS = 120.0
_KINDS = ("jumps", "no jumps", "no grammar")


@dataclass(frozen=True, slots=True)
class _Run:
    """One round of one kind."""

    wall_seconds: float
    texts: list[str]
    counts: list[int]  # output tokens


def jump_gain_section(
    jumping: Server, drawing: Server, about: str, *, num_requests: int, num_rounds: int
) -> Section:
    """Send num_requests at once, round by round; drawing runs with --disable-jump-forward."""
    section = Section("jump-forward in service", about)
    grammar = schema_fields(SHIPMENT_SCHEMA)
    for server in (jumping, drawing):  # the grammar is compiled outside the timed part
        _post(server, [{**chat_body(shipment_question(3, 1_000), 1), **grammar}])
    jumped_before = count_jumped(jumping)
    runs: dict[str, list[_Run]] = {kind: [] for kind in _KINDS}
    for number in range(num_rounds):
        bodies = [
            {**chat_body(shipment_question(i, number), MAX_TOKENS), **grammar}
            for i in range(num_requests)
        ]
        runs["jumps"].append(_post(jumping, bodies))
        runs["no jumps"].append(_post(drawing, bodies))
        # Other orders than before: their prompts are in no cache, and as long.
        plain = [
            {**chat_body(shipment_question(i, 500 + number), count), "ignore_eos": True}
            for i, count in enumerate(runs["jumps"][-1].counts)
        ]
        runs["no grammar"].append(_post(jumping, plain))
    for kind, found in runs.items():
        _add_rates(section, kind, found, num_requests)
    jumps, draws, plain_runs = (runs[kind] for kind in _KINDS)
    num_jumped = count_jumped(jumping) - jumped_before
    num_tokens = sum(count for run in jumps for count in run.counts)
    section.add("share of tokens computed by jump", num_jumped / num_tokens, "")
    section.add("gain of jumping: requests/s", _ratio(jumps, draws), "x")
    section.add("requests/s over those without a grammar", _ratio(jumps, plain_runs), "x")
    for kind in ("jumps", "no jumps"):
        texts = [text for run in runs[kind] for text in run.texts]
        valid = statistics.mean(map(is_valid_shipment, texts))
        section.add(f"{kind}: share of valid answers", valid, "", at_least=1.0)
    pairs = [
        pair
        for one, other in zip(jumps, draws, strict=True)
        for pair in zip(one.texts, other.texts, strict=True)
    ]
    section.add("share of answers equal with and without jumps", _share_equal(pairs), "")
    return section


def _add_rates(section: Section, kind: str, runs: list[_Run], num_requests: int) -> None:
    rates = [num_requests / run.wall_seconds for run in runs]
    tokens = [sum(run.counts) / run.wall_seconds for run in runs]
    section.add(f"{kind}: requests/s, median", statistics.median(rates), "1/s")
    section.add(f"{kind}: requests/s, least", min(rates), "1/s")
    section.add(f"{kind}: requests/s, greatest", max(rates), "1/s")
    section.add(f"{kind}: output tokens/s, median", statistics.median(tokens), "1/s")
    section.add(f"{kind}: output tokens a request", _mean_count(runs), "")


def _mean_count(runs: list[_Run]) -> float:
    return statistics.mean(count for run in runs for count in run.counts)


def _ratio(ours: list[_Run], others: list[_Run]) -> float:
    """The median over rounds of how much sooner ours ended."""
    return statistics.median(
        other.wall_seconds / one.wall_seconds for one, other in zip(ours, others, strict=True)
    )


def _share_equal(pairs: list[tuple[str, str]]) -> float:
    return statistics.mean(one == other for one, other in pairs)


def _post(server: Server, bodies: list[dict[str, Any]]) -> _Run:
    options = {"stream": True, "stream_options": {"include_usage": True}}
    sent = [json.dumps({**body, **options}).encode() for body in bodies]
    answers = post_all(server.url, CHAT_PATH, sent, _TIMEOUT_SECONDS)
    wall = max(one.ended for one in answers) - min(one.started for one in answers)
    read = [_read(answer) for answer in answers]
    return _Run(wall, [text for text, _ in read], [count for _, count in read])


def _read(answer: StreamedAnswer) -> tuple[str, int]:
    """The text and the number of output tokens of an answer."""
    if answer.status != 200:
        raise RuntimeError(f"status {answer.status}: {answer.body[:300]!r}")
    text, count = "", 0
    for line in answer.body.split(b"\n"):
        if not line.startswith(b"data:") or line[5:].strip() == b"[DONE]":
            continue
        event = json.loads(line[5:])
        if "error" in event:
            raise RuntimeError(f"error in the stream: {event['error']}")
        count = (event.get("usage") or {}).get("completion_tokens", count)
        text += "".join(one["delta"].get("content") or "" for one in event.get("choices", []))
    return text, count
