"""The plan of one step: who decodes, who prefills how many tokens, who must give way.

Decode rows come first: each needs one slot, and if the pool cannot give it, requests are retracted
until it can. What is left of the step's token budget goes to prompts: half of it at least to the
oldest prompt in progress, the rest to the shortest remainders and to newcomers, so that a short
prompt passes a long one. The planner changes memory and queues; it knows nothing of tensors.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from ..memory.kv_memory import KvMemory
from ..messages import FinishReason, SchedulerCounters
from .admission import OutputForecast, retraction_order
from .config import SchedulerConfig
from .queue_order import ordered
from .request import Request

logger = logging.getLogger(__name__)

MAX_PROMPTS_IN_PROGRESS = 4  # prompts computed in part at one time
SHARED_PREFIX_TOKENS = 32  # a follower waits for a leader if it saves at least this many tokens
WHOLE_PROMPT_TOKENS = 16384  # a step's prompt tokens when prompts are not chunked


@dataclass(slots=True)
class Queues:
    """The requests a scheduler holds, each in exactly one of the two lists."""

    waiting: list[Request] = field(default_factory=list)
    active: list[Request] = field(default_factory=list)  # in order of admission


@dataclass(frozen=True, slots=True)
class PlannedRow:
    """One request's share of a step: its next num_new uncomputed tokens."""

    request: Request
    num_new: int


@dataclass(frozen=True, slots=True)
class StepPlan:
    """Rows of one forward pass, and requests that cannot go on at all."""

    rows: list[PlannedRow]
    failed: list[tuple[Request, FinishReason]]


class StepPlanner:
    """Builds StepPlans; one per scheduler."""

    def __init__(
        self,
        config: SchedulerConfig,
        memory: KvMemory,
        queues: Queues,
        counters: SchedulerCounters,
        clock: Callable[[], float],
    ) -> None:
        self._config = config
        self._memory = memory
        self._queues = queues
        self._counters = counters
        self._clock = clock
        self._num_admitted = 0
        self.forecast = OutputForecast(config.conservativeness)

    def plan(self) -> StepPlan:
        """Plan the next step. No rows means that there is nothing to compute."""
        failed: list[tuple[Request, FinishReason]] = []
        decoding = self._make_room_for_decode(failed)
        prompts = self._plan_prompts(len(decoding))
        while not decoding and not prompts and self._queues.active:
            # Prompts in part block each other: free the least advanced until one can go on.
            self._give_way(failed)
            prompts = self._plan_prompts(0)
        if prompts and not self._config.mix_decode_into_prefill:
            return StepPlan(prompts, failed)
        return StepPlan([PlannedRow(request, 1) for request in decoding] + prompts, failed)

    def _make_room_for_decode(self, failed: list[tuple[Request, FinishReason]]) -> list[Request]:
        retracted = False
        while True:
            decoding = [r for r in self._queues.active if r.is_decoding]
            if all(self._grow(r, r.num_tokens) for r in decoding):
                break
            retracted = True
            self._give_way(failed)
        if decoding and not retracted:
            self.forecast.step_went_well()
        return decoding

    def _give_way(self, failed: list[tuple[Request, FinishReason]]) -> None:
        """Retract the request that loses least; fail the last one, whom nothing can help."""
        active = self._queues.active
        if len(active) > 1:
            self.retract(retraction_order(active)[0])
            return
        request = active[0]
        message = (
            f"the KV pool of {self._memory.total_tokens} tokens cannot hold the "
            f"{request.num_tokens + 1} tokens of this request; start the server with a larger "
            "--max-total-tokens"
        )
        reason = FinishReason(
            type="abort", message=message, status_code=500, error_type="internal_server_error"
        )
        self.release(request)
        failed.append((request, reason))

    def retract(self, request: Request) -> None:
        """Send an active request back to the queue; its KV stays in the tree, evictable."""
        self.release(request)
        request.num_retractions += 1
        self._queues.waiting.append(request)
        self.forecast.retracted(self._queues.active)
        self._counters.retractions += 1
        logger.info(
            "retracted %s at %d output tokens, ratio %.2f",
            request.rid,
            len(request.output_ids),
            self.forecast.ratio,
        )

    def release(self, request: Request) -> None:
        """Take an active request's lease away, leaving its KV in the tree."""
        assert request.lease is not None, request.rid
        self._memory.close(request.lease, request.all_tokens(), request.num_computed)
        request.lease = None
        request.num_computed = 0
        self._queues.active.remove(request)

    def _grow(self, request: Request, num_tokens: int) -> bool:
        assert request.lease is not None, request.rid
        return self._memory.grow(request.lease, num_tokens)

    # Prompts

    def _plan_prompts(self, num_decoding: int) -> list[PlannedRow]:
        budget = self._config.chunk_tokens or WHOLE_PROMPT_TOKENS
        if self._config.mix_decode_into_prefill:
            budget = max(budget - num_decoding, self._memory.page_size)
        in_progress = [r for r in self._queues.active if not r.is_decoding]
        rows: list[PlannedRow] = []
        reserved = min(budget // 2, in_progress[0].num_uncomputed) if in_progress else 0
        for request in sorted(in_progress[1:], key=lambda r: r.num_uncomputed):
            budget -= self._plan_chunk(rows, request, budget - reserved)
        if self._queues.waiting:
            budget -= self._admit_newcomers(rows, budget - reserved)
        if in_progress:
            self._plan_chunk(rows, in_progress[0], budget)
        return rows

    def _plan_chunk(self, rows: list[PlannedRow], request: Request, budget: int) -> int:
        """Plan up to budget tokens of a prompt in progress; return how many."""
        num_new = self._chunk_length(request, budget)
        if num_new <= 0:
            return 0
        if not self._grow(request, request.num_computed + num_new):
            room = self._memory.num_free_or_evictable
            num_new = self._chunk_length(request, min(num_new, room))
            if num_new <= 0 or not self._grow(request, request.num_computed + num_new):
                return 0
        rows.append(PlannedRow(request, num_new))
        return num_new

    def _chunk_length(self, request: Request, budget: int) -> int:
        if request.num_uncomputed <= budget or self._config.chunk_tokens is None:
            return request.num_uncomputed
        # A chunk ends on a page, so that all of it can enter the tree.
        page = self._memory.page_size
        return max((request.num_computed + budget) // page * page - request.num_computed, 0)

    def _admit_newcomers(self, rows: list[PlannedRow], budget: int) -> int:
        used = 0
        in_progress = [r for r in self._queues.active if not r.is_decoding]
        num_partial = len(in_progress)
        order = ordered(self._queues.waiting, self._config.policy, self._memory, self._num_admitted)
        admitted: set[int] = set()
        for request in order:
            has_slot = len(self._queues.active) < self._config.max_running_requests
            if used >= budget or num_partial >= MAX_PROMPTS_IN_PROGRESS or not has_slot:
                break
            if self._follows_a_leader(request, in_progress):
                continue
            if not self._admit(request):
                break  # whoever stands first is not passed by for want of memory: no starvation
            admitted.add(id(request))
            in_progress.append(request)
            num_new = self._plan_chunk(rows, request, budget - used)
            used += num_new
            num_partial += num_new < request.num_uncomputed
        if admitted:
            self._queues.waiting[:] = [r for r in self._queues.waiting if id(r) not in admitted]
        return used

    def _follows_a_leader(self, request: Request, in_progress: list[Request]) -> bool:
        """Whether a prompt in progress will soon have cached much of this request's prefix."""
        if not in_progress or not self._memory.enable_cache:
            return False
        namespace = request.message.namespace
        match = self._memory.peek_prefix_length(request.all_tokens(), namespace)
        wanted = match + SHARED_PREFIX_TOKENS
        if wanted > request.match_limit:
            return False
        return any(
            leader.num_tokens >= wanted
            and leader.message.namespace == namespace
            and np.array_equal(leader.tokens[:wanted], request.tokens[:wanted])
            for leader in in_progress
        )

    def _admit(self, request: Request) -> bool:
        """Give request a lease if the forecast has room for it."""
        memory = self._memory
        lease = memory.open(request.all_tokens(), request.message.namespace, request.match_limit)
        if lease is None:
            return False
        # Checked with the matched prefix locked: the lock takes it out of what may be evicted.
        room = memory.num_free_or_evictable
        need = request.num_tokens - lease.num_matched + memory.page_size
        need += self.forecast.charge(request)
        active = self._queues.active
        if active and need > room - self.forecast.booked_tokens(active):
            memory.close(lease, request.all_tokens(), lease.num_matched)
            return False
        request.lease = lease
        request.num_computed = lease.num_matched
        active.append(request)
        self._num_admitted += 1
        if request.cached_tokens is None:
            request.cached_tokens = lease.num_matched
            request.queue_seconds = self._clock() - request.message.arrival_seconds
            self._counters.prompt_tokens += request.prompt_length
            self._counters.cached_prompt_tokens += lease.num_matched
        return True
