"""Which gauges and totals are read off a SchedulerState, and under which names."""

from __future__ import annotations

from collections.abc import Iterator

from ..messages import SchedulerState

Sample = tuple[str, str, float]  # name, help, value


def gauges(state: SchedulerState) -> Iterator[Sample]:
    """Yield what the scheduler holds now."""
    kv = state.kv
    num_used = kv.total - kv.available - kv.evictable
    yield "num_running_reqs", "Requests being computed", state.num_running
    yield "num_queue_reqs", "Requests waiting", state.num_waiting
    yield "kv_used_tokens", "KV slots in use by requests, in tokens", num_used
    yield "kv_available_tokens", "Free KV slots, in tokens", kv.available
    yield "kv_evictable_tokens", "Cached KV that may be evicted, in tokens", kv.evictable
    yield "kv_pinned_tokens", "Cached KV that pins keep from eviction, in tokens", kv.pinned
    yield "num_pins", "Pinned prefixes", state.num_pins
    yield "max_total_num_tokens", "Size of the KV pool, in tokens", kv.total
    yield "token_usage", "Share of the KV pool in use by requests", num_used / max(kv.total, 1)
    yield "gen_throughput", "Generated tokens per second", state.generated_tokens_per_second
    yield "new_token_ratio", "Share of the asked-for output admission books", state.new_token_ratio


def counters(state: SchedulerState) -> Iterator[Sample]:
    """Yield the totals since start; the exposition adds _total to their names."""
    totals = state.counters
    yield "num_requests", "Requests received by the scheduler", totals.requests
    yield "num_aborted_requests", "Requests aborted", totals.aborted
    yield "num_retracted_requests", "Retractions of running requests", totals.retractions
    yield "num_preempted_requests", "Retractions for one of higher priority", totals.preemptions
    yield "generation_tokens", "Tokens generated", totals.generated_tokens
    yield "cache_query_tokens", "Prompt tokens looked up in the cache", totals.prompt_tokens
    yield "cache_hit_tokens", "Prompt tokens found in the cache", totals.cached_prompt_tokens
    yield "cached_prompt_tokens", "The same as cache_hit_tokens", totals.cached_prompt_tokens
    forced = totals.jump_forward_tokens
    yield "jump_forward_tokens", "Tokens that a grammar forced, computed without a draw", forced
    yield "evicted_tokens", "Cached tokens evicted", totals.evicted_tokens
