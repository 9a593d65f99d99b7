"""Hostile grammars against a server: how long each takes, and what its neighbours feel of it.

A plain stream and one under a schema run all the time. Inputs come one after the other, each a few
times as another grammar, with pauses in between: gaps between tokens in the pauses are those of
the streams alone. Ordinary requests are sent the same way, for comparison: a request that is served
takes part in the steps, whatever it asks for. Last comes a stream under a schema that no short text
satisfies.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from .figures import Section, percentile
from .hostile_inputs import body_of, hostile_fields, schema_fields
from .neighbours import Gap, Stream, split_gaps
from .schemas import own_cases
from .server import Server, chat_body, post

ANSWER_SECONDS = 2.0  # reach
GAP_GROWTH_MS = 20.0  # reach
_TIMEOUT_SECONDS = 120.0
_AFTER_SECONDS = 0.1  # what a request may still cost after its answer
_OUTPUT_TOKENS = 8
_ROWS = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 12},
            "count": {"type": "integer", "minimum": 0, "maximum": 99},
        },
        "required": ["name", "count"],
        "additionalProperties": False,
    },
}


_MANY = "a list of 400 at least"  # whose shortest end is thousands of tokens away


class _Load:
    """What is sent to one server, and when."""

    def __init__(self, server: Server, num_repeats: int, pause_seconds: float) -> None:
        self._server = server
        self._num_repeats = num_repeats
        self._pause_seconds = pause_seconds
        self.busy: dict[str, list[tuple[float, float]]] = {}
        self.statuses: dict[str, list[int]] = {}
        self.messages: dict[str, str] = {}

    def send(self, name: str, fields: dict[str, Any]) -> None:
        """Send an input as often as it is to be repeated, each after a pause."""
        for number in range(self._num_repeats):
            body = body_of(fields, number, chat_body(f"Answer number {number}.", _OUTPUT_TOKENS))
            time.sleep(self._pause_seconds)
            reply = post(self._server, body, _TIMEOUT_SECONDS)
            self.busy.setdefault(name, []).append((reply.started, reply.ended))
            self.statuses.setdefault(name, []).append(reply.status)
            self.messages[name] = "served" if reply.status == 200 else reply.text

    def stream(self, name: str, body: dict[str, Any], seconds: float) -> None:
        """Stream an answer for a while, then go away."""
        time.sleep(self._pause_seconds)
        started = time.perf_counter()
        stream = Stream(self._server, body)
        _wait_for_text([stream])
        time.sleep(seconds)
        stream.stop()
        self.busy[name] = [(started, time.perf_counter())]

    def longest_seconds(self, name: str) -> float:
        """How long the slowest of an input's answers took."""
        return max(end - start for start, end in self.busy[name])

    def times(self, names: Sequence[str]) -> list[tuple[float, float]]:
        """When the inputs were at work, in all."""
        return [(start, end + _AFTER_SECONDS) for name in names for start, end in self.busy[name]]


def hostile_section(
    server: Server, about: str, *, num_repeats: int, pause_seconds: float, size: float = 1.0
) -> Section:
    """Send all inputs, smaller with a size below one, and report on them and their neighbours."""
    section = Section("hostile inputs", about)
    plain = Stream(server, {**chat_body("Tell a long story.", 1_500), "ignore_eos": True})
    rows = {**chat_body("List the people of a town.", 1_500), **schema_fields(_ROWS)}
    schema = Stream(server, rows)
    hostile = hostile_fields(size)
    ordinary = {f"ordinary: {one.name}": schema_fields(one.schema) for one in own_cases()[:6]}
    load = _Load(server, num_repeats, pause_seconds)
    try:
        _wait_for_text([plain, schema])
        for name, fields in {**ordinary, **hostile}.items():
            load.send(name, fields)
        many = {**rows, **schema_fields({**_ROWS, "minItems": 400})}
        load.stream(_MANY, many, 5 * pause_seconds)
        time.sleep(pause_seconds)
    finally:
        streams = {"plain": plain.stop(), "schema": schema.stop()}
    for name in hostile:
        section.add(f"{name}: s", load.longest_seconds(name), "s", at_most=ANSWER_SECONDS)
        statuses = set(load.statuses[name])
        section.add(f"{name}: status", max(statuses), "", at_most=400)
        section.notes.append(f"{name}: {sorted(statuses)} {load.messages[name][:150]}")
    for name, gaps in streams.items():
        _add_gaps(section, name, gaps, load, list(hostile), list(ordinary))
    return section


def _add_gaps(
    section: Section,
    stream: str,
    gaps: list[Gap],
    load: _Load,
    hostile: list[str],
    ordinary: list[str],
) -> None:
    alone, _ = split_gaps(gaps, load.times(list(load.busy)))
    _, beside = split_gaps(gaps, load.times(hostile))
    _, control = split_gaps(gaps, load.times(ordinary))
    _, many = split_gaps(gaps, load.times([_MANY]))
    for name, share in (("p50", 50.0), ("p99", 99.0), ("max", 100.0)):
        before = percentile(alone, share)
        reach = None if name == "p50" else GAP_GROWTH_MS
        section.add(f"{stream} stream: gap alone {name}", before, "ms")
        for what, found, most in (
            ("hostile ones", beside, reach),
            (_MANY, many, reach),
            ("ordinary ones", control, None),
        ):
            growth = percentile(found, share) - before
            title = f"{stream} stream: growth {name} beside {what}"
            section.add(title, growth, "ms", at_most=most)
    section.add(f"{stream} stream: gaps alone", len(alone), "")
    section.add(f"{stream} stream: gaps beside hostile inputs", len(beside), "")
    worst = {name: max(split_gaps(gaps, load.times([name]))[1], default=0.0) for name in hostile}
    for name, value in sorted(worst.items(), key=lambda item: -item[1])[:3]:
        section.notes.append(f"{stream} stream, longest gap beside {name}: {value:.1f} ms")


def _wait_for_text(streams: list[Stream]) -> None:
    deadline = time.monotonic() + 60
    while any(stream.num_pieces < 5 for stream in streams):
        if time.monotonic() > deadline:
            raise RuntimeError("the neighbouring streams do not start")
        time.sleep(0.05)
