"""A trace: requests with their arrivals, dependencies, prompts and the lengths of their answers.

The length of an answer is known to the simulator and not to the scheduler: the request ends by a
stop after so many tokens, and max_tokens is what the client asked for. docs/simulator.md describes
the file format that trace_file.py reads and writes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from .span_tokens import EOS_TOKEN, new_span_tokens, output_span, span_tokens


class TraceError(ValueError):
    """A trace that cannot be replayed; the text names the request and what is wrong."""


@dataclass(frozen=True, slots=True)
class Span:
    """The first count tokens of a numbered span."""

    span: int
    count: int


@dataclass(frozen=True, slots=True)
class OutputOf:
    """The whole answer of an earlier request."""

    request_id: str


@dataclass(frozen=True, slots=True)
class Ids:
    """Tokens spelt out."""

    ids: tuple[int, ...]


Segment: TypeAlias = Span | OutputOf | Ids


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRequest:
    """One request. It arrives at `arrival`, or `delay` seconds after all of `after` have ended.

    output is the answer's length or its tokens; max_tokens cuts it.
    """

    id: str
    prompt: tuple[Segment, ...]
    output: int | tuple[int, ...]
    max_tokens: int
    arrival: float = 0.0
    after: tuple[str, ...] = ()
    delay: float = 0.0
    program: str | None = None
    priority: int = 0
    namespace: str | None = None
    ignore_eos: bool = False

    @property
    def num_output(self) -> int:
        """Tokens of the answer."""
        length = self.output if isinstance(self.output, int) else len(self.output)
        return min(length, self.max_tokens)

    @property
    def ends_by_stop(self) -> bool:
        """Whether the last token of the answer is a stop, rather than the length limit."""
        return self.num_output < self.max_tokens and not self.ignore_eos


@dataclass(slots=True)
class Trace:
    """Requests in an order where parents stand before their children."""

    requests: Sequence[TraceRequest]
    name: str = "trace"
    by_id: dict[str, TraceRequest] = field(init=False)

    def __post_init__(self) -> None:
        self.by_id = {}
        for request in self.requests:
            _check(request, self.by_id)
            self.by_id[request.id] = request

    def prompt_length(self, request: TraceRequest) -> int:
        """Number of prompt tokens."""
        return sum(self.segment_length(segment) for segment in request.prompt)

    def segment_length(self, segment: Segment) -> int:
        """Number of a segment's tokens."""
        match segment:
            case Span():
                return segment.count
            case OutputOf():
                return self.by_id[segment.request_id].num_output
            case Ids():
                return len(segment.ids)

    def prompt_tokens(self, request: TraceRequest) -> NDArray[np.int32]:
        """Return the prompt as a new array."""
        return np.concatenate([self._segment_tokens(segment) for segment in request.prompt])

    def output_tokens(self, request: TraceRequest) -> NDArray[np.int32]:
        """Return the answer, its stop token included."""
        count = request.num_output
        if not isinstance(request.output, int):
            tokens = np.array(request.output[:count], dtype=np.int32)
        else:
            tokens = new_span_tokens(output_span(request.id), count)
        if request.ends_by_stop:
            tokens[-1] = EOS_TOKEN
        return tokens

    def sequence(self, request: TraceRequest) -> NDArray[np.int32]:
        """Return prompt and answer."""
        return np.concatenate([self.prompt_tokens(request), self.output_tokens(request)])

    def _segment_tokens(self, segment: Segment) -> NDArray[np.int32]:
        match segment:
            case Span():
                return span_tokens(segment.span, segment.count)
            case OutputOf():
                return self.output_tokens(self.by_id[segment.request_id])
            case Ids():
                return np.array(segment.ids, dtype=np.int32)


def _check(request: TraceRequest, earlier: dict[str, TraceRequest]) -> None:
    where = f"request {request.id!r}"
    if request.id in earlier:
        raise TraceError(f"{where} stands twice in the trace")
    if request.max_tokens < 1 or request.num_output < 1:
        raise TraceError(f"{where}: output and max_tokens must be at least 1")
    if request.arrival < 0 or request.delay < 0:
        raise TraceError(f"{where}: arrival and delay must not be negative")
    if request.ignore_eos and request.num_output < request.max_tokens:
        raise TraceError(f"{where} ignores stops, so output must be max_tokens")
    for parent in request.after:
        if parent not in earlier:
            raise TraceError(f"{where} comes after {parent!r}, which does not stand before it")
    wanted = {part.request_id for part in request.prompt if isinstance(part, OutputOf)}
    missing = wanted - set(request.after)
    if missing and not missing <= _ancestors(request, earlier):
        raise TraceError(f"{where} quotes the output of a request that it does not wait for")
    if not any(not isinstance(part, Span) or part.count for part in request.prompt):
        raise TraceError(f"{where} has no prompt")


def _ancestors(request: TraceRequest, earlier: dict[str, TraceRequest]) -> set[str]:
    found: set[str] = set()
    pending = list(request.after)
    while pending:
        name = pending.pop()
        if name not in found:
            found.add(name)
            pending.extend(earlier[name].after)
    return found
