"""The best hit rate that any order could reach, and how much a trace has in all to cache.

Offline, all prompts and answers are known. Visiting them one at a time in depth-first order of
their prefix tree computes every shared prefix once, if the pool holds the longest request; no
order computes less (Zheng et al., 2024, section 3). The replay below does it on the real KvMemory
with the pool of the run, so that evictions are those of the same tree.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from runtime.srt.memory.kv_memory import KvMemory

from .span_tokens import output_span
from .trace import Ids, OutputOf, Span, Trace, TraceRequest


@dataclass(frozen=True, slots=True)
class HitBound:
    """Prompt tokens of a trace, and how many of them an all-knowing order finds cached."""

    prompt_tokens: int
    cached_tokens: int

    @property
    def rate(self) -> float:
        """Cached share of the prompt tokens."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0


def depth_first(trace: Trace) -> list[TraceRequest]:
    """Return the requests in depth-first order of the tree of prompts with their answers.

    A request's answer counts, so that what goes on from it follows directly.
    """
    return sorted(trace.requests, key=lambda request: _sort_key(trace, request))


def best_hits(trace: Trace, pool_tokens: int, page_size: int, context_length: int) -> HitBound:
    """Replay trace depth-first; requests longer than context or pool count for nothing."""
    longest = min(pool_tokens // page_size * page_size, context_length)
    memory = KvMemory(pool_tokens, page_size, 1, context_length)
    prompt_tokens = cached_tokens = 0
    for request in depth_first(trace):
        tokens = trace.sequence(request)
        num_prompt = len(tokens) - request.num_output
        if len(tokens) > longest:
            continue
        lease = memory.open(tokens, request.namespace, num_prompt - 1)
        assert lease is not None, "the only row is taken"
        prompt_tokens += num_prompt
        cached_tokens += lease.num_matched
        has_room = memory.grow(lease, len(tokens))
        assert has_room, f"{len(tokens)} tokens do not fit an empty pool of {pool_tokens}"
        memory.close(lease, tokens, len(tokens) - 1)  # the last token drawn is never computed
    return HitBound(prompt_tokens, cached_tokens)


def working_set_tokens(trace: Trace) -> int:
    """Return the tokens of the tree that would hold all prompts and answers."""
    total = 0
    last, last_namespace = np.empty(0, dtype=np.int32), None
    for request in depth_first(trace):
        tokens = trace.sequence(request)
        shared = 0
        if request.namespace == last_namespace:
            overlap = min(len(tokens), len(last))
            differing = np.flatnonzero(tokens[:overlap] != last[:overlap])
            shared = int(differing[0]) if len(differing) else overlap
        total += len(tokens) - shared
        last, last_namespace = tokens, request.namespace
    return total


def _sort_key(trace: Trace, request: TraceRequest) -> bytes:
    """A key whose order is depth-first: equal beginnings of sequences have equal ones of keys."""
    parts = [(request.namespace or "").encode() + b"\0"]
    for segment in request.prompt:
        match segment:
            case Span():
                parts.append(_span_key(segment.span, segment.count))
            case Ids():
                parts.append(_ids_key(segment.ids))
            case OutputOf():
                parts.append(_output_key(trace.by_id[segment.request_id]))
    return b"".join([*parts, _output_key(request)])


def _output_key(request: TraceRequest) -> bytes:
    if isinstance(request.output, int):
        return _span_key(output_span(request.id), request.num_output)
    return _ids_key(request.output[: request.num_output])


def _span_key(span: int, count: int) -> bytes:
    return span.to_bytes(8, "big") + count.to_bytes(4, "big")


def _ids_key(ids: tuple[int, ...]) -> bytes:
    return np.array(ids, dtype=">u4").tobytes()
