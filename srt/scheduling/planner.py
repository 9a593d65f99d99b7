"""The plan of one step: who decodes, who prefills how many tokens, who must give way.

Decode rows come first: each needs one slot, and if the pool cannot give it, requests are retracted
until it can. What is left of the step's token budget goes to prompts: half of it at least to the
oldest prompt in progress, the rest to the shortest remainders and to newcomers, so that a short
prompt passes a long one. The planner changes memory and queues; it knows nothing of tensors.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

import msgspec

from ..memory.kv_memory import KvMemory
from ..messages import FinishReason, SchedulerCounters
from .admission import AdmissionRule, admission_rule, retraction_order
from .config import SchedulerConfig
from .finish_reasons import failure
from .limits import TokenQuotas
from .prefill_pace import PrefillPace
from .request import Request
from .waiting_queue import WaitingQueue

logger = logging.getLogger(__name__)

MAX_PROMPTS_IN_PROGRESS = 4  # prompts computed in part at one time
WHOLE_PROMPT_TOKENS = 16384  # a step's prompt tokens when prompts are not chunked


@dataclass(slots=True)
class Queues:
    """The requests a scheduler holds, each in exactly one of the two."""

    waiting: WaitingQueue
    active: list[Request] = field(default_factory=list)  # in order of admission


class PlannedRow(msgspec.Struct):  # as SampleRow
    """One request's share of a step: its next num_new uncomputed tokens."""

    request: Request
    num_new: int
    is_decode: bool = False


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
        self._num_plans = 0
        self._is_prompt_turn = False
        self._oldest: tuple[Request, int] | None = None  # prompt in progress, and how far it was
        self._gave_way: set[Request] = set()  # in this step: not to be admitted in it again
        self.pace = PrefillPace(config.max_prefill_slice_ms)
        self.admission: AdmissionRule = admission_rule(config)
        self.quotas = TokenQuotas(config.quotas, clock)

    def plan(self) -> StepPlan:
        """Plan the next step. No rows means that there is nothing to compute."""
        failed: list[tuple[Request, FinishReason]] = []
        self._gave_way.clear()
        self._force_retraction()
        while True:
            decoding = self._make_room_for_decode(failed)
            num_gave_way = len(self._gave_way)
            prompts = self._plan_prompts(decoding)
            # Whoever was preempted by a newcomer has no lease any more.
            decoding = [r for r in decoding if r.lease is not None]
            prompts = [row for row in prompts if row.request.lease is not None]
            if decoding or prompts or not self._queues.active or self._has_results_due():
                break
            if len(self._gave_way) == num_gave_way:
                # Prompts in part block each other: free the least advanced until one can go on.
                self._give_way(failed)
        if prompts and decoding and not self._config.mix_decode_into_prefill:
            # They take turns: no stream of prompts may keep the others from decoding.
            self._is_prompt_turn = not self._is_prompt_turn
            if self._is_prompt_turn:
                decoding = []
            else:
                prompts = []
        decode_rows = [PlannedRow(one, 1 + one.num_forced, True) for one in decoding]
        return StepPlan(decode_rows + prompts, failed)

    # Decoding

    def _make_room_for_decode(self, failed: list[tuple[Request, FinishReason]]) -> list[Request]:
        retracted = False
        while True:
            decoding, leases = [], []
            for request in self._queues.active:  # written out: properties were half of its time
                num_tokens = request.num_tokens
                is_decoding = num_tokens - request.num_computed == 1 + request.num_forced
                num_output = num_tokens - request.prompt_length
                if is_decoding and 0 < num_output < request.max_new_tokens:
                    decoding.append(request)
                    leases.append(request.kv_lease)
            if self._memory.grow_many(leases, [r.num_tokens for r in decoding]):
                break
            if self._has_results_due():
                return []  # what ends in the step in flight may give room without a retraction
            retracted = True
            self._give_way(failed)
        if decoding and not retracted:
            self.admission.step_went_well()
        return decoding

    def _has_results_due(self) -> bool:
        return any(r.num_ready < r.num_computed for r in self._queues.active)

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
        reason = failure(message, 500)
        if self._memory.pinned_tokens:
            reason = _no_room_beside_pins(request, self._memory)
        self.release(request)
        failed.append((request, reason))

    def _force_retraction(self) -> None:
        """For tests: retract every test_retract_every steps, whether there is need or not."""
        self._num_plans += 1
        every = self._config.test_retract_every
        if every and self._num_plans % every == 0 and len(self._queues.active) > 1:
            self.retract(retraction_order(self._queues.active)[0])

    def begin_anew(self, request: Request) -> None:
        """Send an active request back to the queue; its KV stays in the tree, evictable."""
        self.release(request)
        request.num_retractions += 1
        self._queues.waiting.add(request)

    def retract(self, request: Request) -> None:
        """Let a request begin anew because the pool is too small, which admission learns from."""
        self.begin_anew(request)
        self.admission.retracted(request, self._queues.active)
        self._counters.retractions += 1
        logger.info(
            "retracted %s at %d output tokens, booked share %.2f",
            request.rid,
            len(request.output_ids),
            self.admission.ratio,
        )

    def release(self, request: Request) -> None:
        """Take an active request's lease away, leaving its KV in the tree."""
        num_cached = min(request.num_ready, request.num_cacheable)
        self._memory.close(request.kv_lease, request.all_tokens(), num_cached)
        request.lease = None
        request.forget_steps()
        self._queues.active.remove(request)
        self._queues.waiting.left(request)
        self._gave_way.add(request)

    # Prompts

    def _plan_prompts(self, decoding: list[Request]) -> list[PlannedRow]:
        budget = self._config.chunk_tokens or WHOLE_PROMPT_TOKENS
        num_decoding = sum(1 + r.num_forced for r in decoding)
        if num_decoding:
            budget = min(budget, max(self.pace.slice_tokens, self._memory.page_size))
        if self._config.mix_decode_into_prefill:
            budget = max(budget - num_decoding, self._memory.page_size)
        known_to_decode = set(decoding)  # asked first: it is a fifth of the cost of is_decoding
        in_progress = [
            r for r in self._queues.active if r not in known_to_decode and not r.is_decoding
        ]
        rows: list[PlannedRow] = []
        reserved = self._share_of_oldest(in_progress[0], budget) if in_progress else 0
        for request in sorted(in_progress[1:], key=lambda r: r.num_uncomputed):
            budget -= self._plan_chunk(rows, request, budget - reserved)
        if self._queues.waiting:
            budget -= self._admit_newcomers(rows, in_progress, budget - reserved)
        served = known_to_decode.union(row.request for row in rows)
        for request in self._queues.active:  # the oldest, and who got nothing of the shares above
            if request not in served and not request.is_decoding:
                budget -= self._plan_chunk(rows, request, budget)
        return rows

    def _share_of_oldest(self, oldest: Request, budget: int) -> int:
        """Half of budget; all of it, if need be, for one that did not advance in the last step.

        Half of a single page would be nothing, step after step, as long as others come.
        """
        stood_still = self._oldest == (oldest, oldest.num_computed)
        self._oldest = (oldest, oldest.num_computed)
        least = self._memory.page_size if stood_still else 0
        return min(max(budget // 2, least), oldest.num_uncomputed)

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

    def _grow(self, request: Request, num_tokens: int) -> bool:
        return self._memory.grow(request.kv_lease, num_tokens)

    # Newcomers

    def _admit_newcomers(
        self, rows: list[PlannedRow], in_progress: list[Request], budget: int
    ) -> int:
        num_partial = len(in_progress)
        if budget <= 0 or num_partial >= MAX_PROMPTS_IN_PROGRESS:
            return 0
        active, waiting = self._queues.active, self._queues.waiting
        leaders: dict[Hashable, list[Request]] = {}
        for leader in active:
            if leader.num_ready < leader.prompt_length:
                self._lead(leaders, leader)
        used = 0
        is_booked = False
        candidates = waiting.candidates()
        for request in candidates:
            if request in self._gave_way or waiting.park_behind(request, leaders):
                continue
            quota_time = self.quotas.waits_until(request.message.tenant)
            if quota_time is not None and request.cached_tokens is None:  # not yet begun
                waiting.defer(request, quota_time)
                continue
            has_slot = len(active) < self._config.max_running_requests
            if has_slot and not is_booked:
                self.admission.begin_step(active)
                is_booked = True
            if not (has_slot and self._admit(request)) and not self._preempt_for(request):
                break  # whoever stands first is not passed by for want of room: no starvation
            num_new = self._plan_chunk(rows, request, budget - used)
            used += num_new
            num_partial += num_new < request.num_uncomputed
            self._lead(leaders, request)
            if used >= budget or num_partial >= MAX_PROMPTS_IN_PROGRESS:
                break
        candidates.close()
        return used

    def _lead(self, leaders: dict[Hashable, list[Request]], request: Request) -> None:
        cacheable = request.tokens[: request.num_cacheable]
        group = self._memory.group_of(request.kv_lease, cacheable)
        if group is not None:
            leaders.setdefault(group, []).append(request)

    def _admit(self, request: Request) -> bool:
        """Give request a lease if the forecast has room for it."""
        memory = self._memory
        lease = memory.open(
            request.all_tokens(),
            request.message.namespace,
            request.match_limit,
            request.message.priority,
        )
        if lease is None:
            return False
        # Checked with the matched prefix locked: the lock takes it out of what may be evicted.
        prompt_tokens = request.num_tokens - lease.num_matched + memory.page_size
        room = memory.num_free_or_evictable
        if self._queues.active and not self.admission.fits(request, prompt_tokens, room):
            memory.close(lease, request.all_tokens(), lease.num_matched)
            return False
        self.admission.admitted(request, prompt_tokens)
        self._queues.waiting.admit(request)
        request.lease = lease
        request.num_computed = request.num_ready = lease.num_matched
        self._queues.active.append(request)
        if request.cached_tokens is None:
            request.cached_tokens = lease.num_matched
            request.queue_seconds = self._clock() - request.message.arrival_seconds
            self._counters.prompt_tokens += request.prompt_length
            self._counters.cached_prompt_tokens += lease.num_matched
            num_uncached = request.num_tokens - lease.num_matched
            self.quotas.charge(request.message.tenant, num_uncached)
        return True

    def _preempt_for(self, request: Request) -> bool:
        """Retract requests of far lower priority until request is admitted; False if none is."""
        limit = request.message.priority - self._config.preemption_threshold
        while True:
            victims = [r for r in self._queues.active if r.message.priority < limit]
            if not victims:
                return False
            self.retract(retraction_order(victims)[0])
            self._counters.preemptions += 1
            self.admission.begin_step(self._queues.active)
            if self._admit(request):
                return True


def _no_room_beside_pins(request: Request, memory: KvMemory) -> FinishReason:
    message = (
        f"the KV pool of {memory.total_tokens} tokens, {memory.pinned_tokens} of them pinned, "
        f"cannot hold the {request.num_tokens + 1} tokens of this request; try again when a pin "
        "has expired, or unpin one"
    )
    return failure(message, 503, "overloaded_error")
