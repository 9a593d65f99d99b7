"""Reads and writes traces as JSON lines, one request a line; docs/simulator.md has the fields."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

from .span_tokens import MAX_SPAN
from .trace import Ids, OutputOf, Segment, Span, Trace, TraceError, TraceRequest

_OPTIONAL: dict[str, Any] = {
    "arrival": 0.0,
    "after": (),
    "delay": 0.0,
    "program": None,
    "priority": 0,
    "namespace": None,
    "ignore_eos": False,
}
_FIELDS = {"id", "prompt", "output", "max_tokens", *_OPTIONAL}


def write_trace(trace: Trace, path: Path) -> None:
    """Write trace; fields that have their default are left out."""
    with path.open("wb") as file:
        for request in trace.requests:
            file.write(orjson.dumps(_to_json(request)) + b"\n")


def read_trace(path: Path) -> Trace:
    """Read a trace. Raises TraceError naming the line, or OSError."""
    return Trace(list(_read_requests(path)), path.stem)


def _read_requests(path: Path) -> Iterator[TraceRequest]:
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                yield _from_json(orjson.loads(line))
            except (ValueError, TypeError, KeyError) as error:
                raise TraceError(f"{path}:{number}: {error}") from error


def _to_json(request: TraceRequest) -> dict[str, Any]:
    fields: dict[str, Any] = {"id": request.id}
    for name, default in _OPTIONAL.items():
        value = getattr(request, name)
        if value != default:
            fields[name] = value
    fields["prompt"] = [_segment_to_json(segment) for segment in request.prompt]
    fields["output"] = request.output
    fields["max_tokens"] = request.max_tokens
    return fields


def _segment_to_json(segment: Segment) -> list[int] | dict[str, Any]:
    match segment:
        case Span():
            return [segment.span, segment.count]
        case OutputOf():
            return {"output": segment.request_id}
        case Ids():
            return {"ids": segment.ids}


def _from_json(fields: Any) -> TraceRequest:
    if not isinstance(fields, dict):
        raise TypeError("not a JSON object")
    if missing := {"id", "prompt", "output", "max_tokens"} - fields.keys():
        raise ValueError(f"{', '.join(sorted(missing))} missing")
    if unknown := fields.keys() - _FIELDS:
        raise ValueError(f"unknown field {', '.join(sorted(unknown))}")
    output = fields["output"]
    return TraceRequest(
        id=str(fields["id"]),
        prompt=tuple(_segment_from_json(part) for part in fields["prompt"]),
        output=tuple(output) if isinstance(output, list) else int(output),
        max_tokens=int(fields["max_tokens"]),
        arrival=float(fields.get("arrival", 0.0)),
        after=tuple(str(name) for name in fields.get("after", ())),
        delay=float(fields.get("delay", 0.0)),
        program=None if fields.get("program") is None else str(fields["program"]),
        priority=int(fields.get("priority", 0)),
        namespace=fields.get("namespace"),
        ignore_eos=bool(fields.get("ignore_eos", False)),
    )


def _segment_from_json(part: Any) -> Segment:
    match part:
        case [int(span), int(count)] if 0 <= span <= MAX_SPAN and count >= 0:
            return Span(span, count)
        case {"output": request_id, **rest} if not rest:
            return OutputOf(str(request_id))
        case {"ids": [*ids], **rest} if not rest:
            return Ids(tuple(int(token) for token in ids))
    raise ValueError(f'{part!r} is none of [span, count], {{"output": id}}, {{"ids": [...]}}')
