"""The scheduler: receive, plan, launch, absorb.

It owns the requests, their memory and the queue, and has no sockets: messages go in, deltas and
replies are taken out. `step` runs the verbs one after another; a loop that overlaps them uses the
same four. Every accepted request ends in exactly one finish delta.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from runtime.grammars.matcher import GrammarError

from ..errors import BadRequest, DeviceOutOfMemory, ServingError
from ..execution.forward_batch import Executor, SampledToken
from ..execution.launching import LaunchingExecutor
from ..memory.kv_memory import KvLease, KvMemory
from ..messages import (
    AbortRequest,
    FinishReason,
    FlushCache,
    FlushDone,
    GenerateRequest,
    GrammarReady,
    PositionLogprobs,
    SchedulerCounters,
    SchedulerReply,
    SchedulerState,
    StateQuery,
    TokenDelta,
    ToScheduler,
    UnpinDone,
    UnpinPrefix,
)
from .batch_builder import BatchBuilder, StepInput
from .compiling import CompilingRequests, GrammarStore, NoGrammars
from .config import SchedulerConfig
from .finish_reasons import CLIENT_ABORT, SERVER_ERROR, SHUTDOWN_ABORT, failure
from .grammar_rows import Outcome
from .launch_runner import LaunchRunner
from .limits import Deadlines
from .outbox import Outbox
from .planner import Queues, StepPlan, StepPlanner
from .prefix_pins import PrefixPins
from .queue_limits import QueueLimits
from .request import MakeStopChecker, Request
from .step_log import StepLog
from .step_runner import InlineRunner, PendingStep, StepRunner, ThreadRunner
from .stop_rules import finish_after
from .waiting_queue import WaitingQueue

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StepInFlight:
    """A launched step, the leases its rows had then, and its results to come."""

    step: StepInput
    leases: dict[Request, KvLease]
    result: PendingStep


@dataclass(slots=True)
class _PendingFlush:
    call: FlushCache
    deadline: float


class Scheduler:
    """One model's requests, from arrival to their last delta."""

    def __init__(
        self,
        config: SchedulerConfig,
        memory: KvMemory,
        executor: Executor,
        make_stop_checker: MakeStopChecker,
        clock: Callable[[], float] = time.monotonic,
        grammars: GrammarStore | None = None,
    ) -> None:
        self._config = config
        self._memory = memory
        self._runner: StepRunner
        runs_in_thread = False
        if config.overlap_depth == 0:
            self._runner = InlineRunner(executor, clock)
        elif isinstance(executor, LaunchingExecutor):
            self._runner = LaunchRunner(executor, clock)
        else:
            self._runner = ThreadRunner(executor, len(memory.table.slot_table), clock)
            runs_in_thread = True
        self._in_flight: StepInFlight | None = None
        self._make_stop_checker = make_stop_checker
        self._clock = clock
        self._tokens_computed = 0
        self._num_unplanned = 0  # requests that have come since the last plan
        self._queues = Queues(
            WaitingQueue(
                memory,
                config.policy,
                clock,
                lambda: self._tokens_computed,
                config.max_wait_seconds,
                config.ageing_stride,
                config.in_batch_sharing_min_tokens,
                config.in_batch_sharing_max_cached_tokens,
                config.program_order,
            )
        )
        self._compiling = CompilingRequests(
            grammars or NoGrammars(), config.vocab_size, jumps=config.jump_forward
        )
        self._by_rid: dict[str, Request] = {}
        self._counters = SchedulerCounters()
        self._planner = StepPlanner(config, memory, self._queues, self._counters, clock)
        self._queue_limits = QueueLimits(config, self._queues, self._counters, self._planner.pace)
        self._builder = BatchBuilder(memory, copies_slots=runs_in_thread)
        self._outbox = Outbox(config.stream_interval)
        self._replies: list[SchedulerReply] = []
        self._flushes: list[_PendingFlush] = []
        self._deadlines = Deadlines()
        self._pins = PrefixPins(memory, clock)
        self._log = StepLog(config.log_interval_steps, clock)

    # Receive

    def receive(self, message: ToScheduler) -> None:
        """Take one message from the edge, which has checked it."""
        match message:
            case GenerateRequest():
                self._receive_request(message)
            case AbortRequest():
                self._abort(message)
            case FlushCache():
                deadline = self._clock() + message.timeout_seconds
                self._flushes.append(_PendingFlush(message, deadline))
            case UnpinPrefix():
                num_tokens = self._pins.unpin(message.pin_id)
                self._replies.append(UnpinDone(message.call_id, num_tokens))
            case GrammarReady():
                for request in self._compiling.take_ready(message.key):
                    self._enqueue(request)
            case StateQuery():
                self._replies.append(self._state(message.call_id))
            case _:
                raise AssertionError(f"not a message for the scheduler: {message!r}")

    def _receive_request(self, message: GenerateRequest) -> None:
        self._counters.requests += 1
        request = Request.of(message, self._make_stop_checker, self._config.eos_token_ids)
        assert message.rid not in self._by_rid, f"request id {message.rid} is open twice"
        if message.pin_seconds is not None:
            try:
                self._pins.check(request)
            except BadRequest as error:
                self._finish(request, failure(error.message, 400, error.error_type))
                return
        num_queued = len(self._queues.waiting) + len(self._compiling) + 1
        refusal = self._queue_limits.refusal(request, num_queued, self._num_unplanned)
        if refusal is not None:
            self._finish(request, failure(refusal, 503, "overloaded_error"))
            return
        self._by_rid[message.rid] = request
        self._deadlines.add(request)
        self._enqueue(request)

    def _enqueue(self, request: Request) -> None:
        """Let request wait for its turn, as soon as its grammar is there if it has one."""
        if request.message.grammar is not None:
            try:
                if not self._compiling.attach(request):
                    return
            except GrammarError as error:
                self._end(request, failure(str(error), 400, "invalid_request_error"))
                return
        self._queues.waiting.add(request)
        self._num_unplanned += 1

    def _abort(self, message: AbortRequest) -> None:
        rid = message.rid
        reason = SHUTDOWN_ABORT if message.is_shutdown else CLIENT_ABORT
        doomed = list(self._by_rid.values()) if rid is None else [self._by_rid.get(rid)]
        for request in doomed:
            if request is not None:  # else it has just finished: its last delta is on the way
                self._end(request, reason)

    # Plan, launch, absorb

    def step(self) -> bool:
        """Launch one step and absorb one; return whether there was anything to compute.

        With an overlap depth of 1 the step absorbed is the one launched by the call before.
        """
        plan = self.plan()
        launched = None if plan is None else self.launch(plan)
        if self._config.overlap_depth == 0:
            due = launched
        else:
            due, self._in_flight = self._in_flight, launched
        if due is not None:
            self.absorb(due)
        return due is not None or plan is not None

    def plan(self) -> StepPlan | None:
        """Decide the next step; None if there is nothing to compute."""
        self._serve_flushes()
        self._pins.release_expired()
        self._end_expired()
        self._num_unplanned = 0
        if not self._by_rid:
            self._compiling.rest(self._clock())
            return None
        while True:
            plan = self._planner.plan()
            for request, reason in plan.failed:
                logger.warning("%s failed: %s", request.rid, reason.message)
                self._end(request, reason)
            if plan.rows or not self._by_rid:
                return plan if plan.rows else None
            if not plan.failed:
                if self._in_flight is not None:
                    return None  # its results will show what can go on
                is_held_up = self._queues.waiting.has_deferred or len(self._compiling)
                assert is_held_up, "requests are open, and none can go on"
                return None

    def launch(self, plan: StepPlan) -> StepInFlight | None:
        """Have the planned rows computed, and count on it; None if the device has no memory."""
        step = self._builder.build(plan.rows)
        leases = {}
        for row in step.rows:
            request = row.request
            leases[request] = request.kv_lease
            request.num_computed += row.num_new
            if request.num_forced:
                self._counters.jump_forward_tokens += request.num_forced
                request.num_forced = 0
        for request in step.sampled_requests:
            request.reserve()
        for request, scored in zip(step.scored_requests, step.prompt_logprob_rows, strict=False):
            request.num_scored += len(scored.target_ids)
        try:
            return StepInFlight(step, leases, self._runner.submit(step))
        except DeviceOutOfMemory as error:
            self._give_up(step, leases, error)
            return None

    def _give_up(
        self, step: StepInput, leases: dict[Request, KvLease], error: DeviceOutOfMemory
    ) -> None:
        """End the request with most tokens in a step that came to nothing; the others go on.

        They begin anew from what is cached, so each such step ends one request at most: none if
        the step before it, which is absorbed first, ends them all.
        """
        if self._in_flight is not None:
            due, self._in_flight = self._in_flight, None
            self.absorb(due)
        rows = [row for row in step.rows if row.request.lease is leases[row.request]]
        if not rows:
            return
        largest = max(rows, key=lambda row: (row.num_new, row.request.number)).request
        logger.error("%s failed: %s", largest.rid, error.message)
        for row in rows:
            if row.request is not largest:
                self._planner.begin_anew(row.request)
        self._end(largest, failure(error.message, error.status_code, error.error_type))
        if not self._by_rid:
            self._on_idle()

    def absorb(self, in_flight: StepInFlight) -> None:
        """Take the results in: cache prompts, append tokens, end what has ended.

        Who has ended or was retracted since the launch has another lease or none: the step's
        results mean nothing to it any more.
        """
        step, leases = in_flight.step, in_flight.leases
        result = in_flight.result.result()
        output = result.output
        num_scored = len(step.scored_requests)
        num_told = num_scored + len(step.choice_scores)
        for request, scores in zip(step.scored_requests, output.prompt_logprobs, strict=False):
            if request.lease is leases[request]:
                request.prompt_logprobs.extend(scores)
        told = zip(step.choice_scores, output.prompt_logprobs[num_scored:num_told], strict=True)
        for choices, scores in told:  # right also for who has lost its lease since
            choices.learn(scores)
        num_prompt_tokens = 0
        prompts: list[Request] = []
        for row in step.rows:
            request, num_new = row.request, row.num_new
            self._tokens_computed += num_new
            if not row.is_decode:
                num_prompt_tokens += num_new
            if request.lease is not leases[request]:
                continue
            request.num_ready += num_new
            if not row.is_decode:
                prompts.append(request)
                self._cache_prompt(request)
        now = self._clock()
        self._planner.pace.step_took(num_prompt_tokens, result.seconds)
        forced = zip(step.forced_requests, output.prompt_logprobs[num_told:], strict=False)
        for request, scores in forced:
            if request.lease is leases[request]:
                self._absorb_forced(request, scores)
        drawn = zip(step.sampled_requests, output.sampled, strict=True)
        outcomes = result.outcomes
        for place, (request, sampled) in enumerate(drawn):
            if request.lease is leases[request]:
                outcome = outcomes.get(place) if outcomes else None
                self._absorb_token(request, sampled, outcome, now)
        for request in prompts:
            if request.lease is leases[request] and request.num_ready == request.num_tokens:
                if request.race is not None and request.go_on_with_race():
                    continue
                self._end(request, FinishReason(type="length"))  # max_new_tokens is 0
        self._counters.steps += 1
        self._log.step(step, self._queues, self._memory, self._planner.admission)
        if not self._by_rid and self._in_flight is None:
            self._on_idle()

    def _cache_prompt(self, request: Request) -> None:
        num_ready = min(request.num_ready, request.num_cacheable)
        self._memory.commit(request.kv_lease, request.all_tokens(), num_ready)
        self._queues.waiting.advanced(request)

    def _absorb_token(
        self, request: Request, sampled: SampledToken, outcome: Outcome | None, now: float
    ) -> None:
        if sampled.error is not None:
            kind = "invalid_request_error" if sampled.status_code == 400 else SERVER_ERROR
            self._end(request, failure(sampled.error, sampled.status_code, kind))
            return
        if request.first_token_seconds is None:
            request.first_token_seconds = now
        if sampled.logprobs is not None:
            logprobs = sampled.logprobs
            if request.is_pending_forced:
                logprobs, request.is_pending_forced = _forced(logprobs), False
            request.output_logprobs.append(logprobs)
        forced: Sequence[int] = ()
        if outcome is not None:
            forced = request.jump_forward(outcome.forced)
            request.ends_whole = outcome.ends_whole
        goes_on = self._append(request, sampled.token_id)
        if forced:
            goes_on = goes_on and all(self._append(request, one) for one in forced)
        if goes_on and request.message.stream:
            self._outbox.progress(request, now)

    def _absorb_forced(self, request: Request, scores: list[PositionLogprobs]) -> None:
        for token_id, logprobs in zip(request.take_scored(), scores, strict=True):
            request.output_logprobs.append(_forced(logprobs))
            if not self._append(request, token_id):
                return

    def _append(self, request: Request, token_id: int) -> bool:
        """Append an output token; return whether request goes on after it."""
        request.append(token_id)
        self._counters.generated_tokens += 1
        reason: FinishReason | None
        if request.grammar is not None and token_id in self._config.eos_token_ids:
            reason = FinishReason(type="stop", matched=token_id)  # a grammar ends only where it may
        else:
            try:
                reason = finish_after(request)
            except ServingError as error:  # a stop_regex that takes too long ends its own alone
                reason = failure(error.message, error.status_code, error.error_type)
        if reason is None:
            return True
        if request.ends_whole and reason.type == "length":
            reason = FinishReason(type="stop")
        self._end(request, reason)
        return False

    # The end of a request

    def _end(self, request: Request, reason: FinishReason) -> None:
        """Release what an accepted request holds and send its last delta."""
        if request.lease is not None:
            self._planner.release(request)
        elif request in self._queues.waiting:
            self._queues.waiting.remove(request)
        else:
            self._compiling.remove(request)
        del self._by_rid[request.rid]
        if request.message.pin_seconds is not None and reason.type != "abort":
            try:  # before anything can be evicted
                request.pin = self._pins.pin(request)
            except BadRequest as error:  # others have been pinned meanwhile
                reason = failure(error.message, 400, error.error_type)
        self._finish(request, reason)

    def _finish(self, request: Request, reason: FinishReason) -> None:
        if reason.type == "abort":
            self._counters.aborted += 1
        else:
            self._counters.finished += 1
            self._planner.admission.finished(request)
        self._planner.quotas.charge(request.message.tenant, len(request.output_ids))
        self._outbox.finish(request, reason, self._clock())
        self._deadlines.ended(request)
        message = request.message
        logger.debug(
            "%s (program %s, branch %s) ended: %s",
            request.rid,
            message.program_id,
            message.branch_id,
            reason.type,
        )

    def _on_idle(self) -> None:
        self._planner.admission.reset()
        self._log.idle()
        self._memory.check_identity()
        kv = self._memory.stats()
        pinned = self._memory.pinned_tokens
        assert kv.protected == pinned and kv.held == 0, (
            f"KV is held with no request open and {pinned} tokens pinned: {kv}"
        )

    def _end_expired(self) -> None:
        for request in self._deadlines.expired(self._clock()):
            message = request.message
            allowed = (message.deadline_seconds or 0.0) - message.arrival_seconds
            text = (
                f"the request did not end within its {allowed:g} s; "
                f"{len(request.output_ids)} tokens were generated"
            )
            self._end(request, failure(text, 504, "timeout_error"))

    # Control

    def _serve_flushes(self) -> None:
        now = self._clock()
        for flush in list(self._flushes):
            if not self._by_rid and self._in_flight is None:
                self._memory.flush()
                done = FlushDone(flush.call.call_id, True, "the cache is empty")
            elif now >= flush.deadline:
                text = (
                    f"{len(self._queues.active)} requests are running and "
                    f"{len(self._queues.waiting)} waiting after "
                    f"{flush.call.timeout_seconds:g} s; retry with a longer timeout"
                )
                done = FlushDone(flush.call.call_id, False, text)
            else:
                continue
            self._flushes.remove(flush)
            self._replies.append(done)

    def _state(self, call_id: int) -> SchedulerState:
        self._pins.release_expired()
        self._counters.evicted_tokens = self._memory.evicted_tokens_total
        return SchedulerState(
            call_id=call_id,
            kv=self._memory.stats(),
            num_running=len(self._queues.active),
            num_waiting=len(self._queues.waiting) + len(self._compiling),
            new_token_ratio=self._planner.admission.ratio,
            generated_tokens_per_second=self._log.tokens_per_second,
            counters=self._counters,
            num_pins=self._memory.pins.num_pins,
            pin_limit_tokens=self._memory.pins.limit_tokens,
        )

    # Taking out

    @property
    def is_idle(self) -> bool:
        """Whether no request is open and no call is pending."""
        return not self._by_rid and not self._flushes and self._in_flight is None

    @property
    def has_work(self) -> bool:
        """Whether a request is open or a call is pending."""
        return not self.is_idle

    def take_token_deltas(self) -> list[TokenDelta]:
        """Return and forget the deltas since the last call."""
        return self._outbox.take()

    def take_replies(self) -> list[SchedulerReply]:
        """Return and forget the replies since the last call."""
        replies, self._replies = self._replies, []
        return replies


def _forced(logprobs: PositionLogprobs) -> PositionLogprobs:
    return msgspec.structs.replace(logprobs, is_forced=True)
