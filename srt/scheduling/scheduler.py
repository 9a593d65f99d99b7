"""The scheduler: receive, plan, launch, absorb.

It owns the requests, their memory and the queue, and has no sockets: messages go in, deltas and
replies are taken out. `step` runs the verbs one after another; a loop that overlaps them uses the
same four. Every accepted request ends in exactly one finish delta.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from ..errors import ServingError
from ..execution.forward_batch import Executor, SampledToken, StepOutput
from ..memory.kv_memory import KvMemory
from ..messages import (
    AbortRequest,
    FinishReason,
    FlushCache,
    FlushDone,
    GenerateRequest,
    SchedulerCounters,
    SchedulerState,
    StateQuery,
    TokenDelta,
    ToScheduler,
)
from .batch_builder import BatchBuilder, StepInput
from .config import SchedulerConfig
from .outbox import Outbox
from .planner import Queues, StepPlan, StepPlanner
from .request import MakeStopChecker, Request
from .step_log import StepLog
from .stop_rules import finish_after

logger = logging.getLogger(__name__)

CLIENT_ABORT = FinishReason(type="abort", message="aborted by the client")


@dataclass(frozen=True, slots=True)
class StepInFlight:
    """A launched step and its results."""

    step: StepInput
    output: StepOutput


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
    ) -> None:
        self._config = config
        self._memory = memory
        self._executor = executor
        self._make_stop_checker = make_stop_checker
        self._clock = clock
        self._queues = Queues()
        self._by_rid: dict[str, Request] = {}
        self._counters = SchedulerCounters()
        self._planner = StepPlanner(config, memory, self._queues, self._counters, clock)
        self._builder = BatchBuilder(memory, config.eos_token_ids)
        self._outbox = Outbox(config.stream_interval, clock)
        self._replies: list[FlushDone | SchedulerState] = []
        self._flushes: list[_PendingFlush] = []
        self._log = StepLog(config.log_interval_steps, clock)

    # Receive

    def receive(self, message: ToScheduler) -> None:
        """Take one message from the edge, which has checked it."""
        match message:
            case GenerateRequest():
                self._receive_request(message)
            case AbortRequest():
                self._abort(message.rid)
            case FlushCache():
                deadline = self._clock() + message.timeout_seconds
                self._flushes.append(_PendingFlush(message, deadline))
            case StateQuery():
                self._replies.append(self._state(message.call_id))
            case _:
                raise AssertionError(f"not a message for the scheduler: {message!r}")

    def _receive_request(self, message: GenerateRequest) -> None:
        self._counters.requests += 1
        request = Request.of(message, self._make_stop_checker)
        assert message.rid not in self._by_rid, f"request id {message.rid} is open twice"
        limit = self._config.max_queued_requests
        if limit is not None and len(self._queues.waiting) >= limit:
            text = f"the queue is full: {limit} requests are waiting; try again later"
            self._finish(
                request,
                FinishReason(
                    type="abort", message=text, status_code=503, error_type="overloaded_error"
                ),
            )
            return
        self._by_rid[message.rid] = request
        self._queues.waiting.append(request)

    def _abort(self, rid: str | None) -> None:
        doomed = list(self._by_rid.values()) if rid is None else [self._by_rid.get(rid)]
        for request in doomed:
            if request is not None:  # else it has just finished: its last delta is on the way
                self._end(request, CLIENT_ABORT)

    # Plan, launch, absorb

    def step(self) -> bool:
        """Run one step, nothing overlapped; return whether there was anything to compute."""
        plan = self.plan()
        if plan is None:
            return False
        self.absorb(self.launch(plan))
        return True

    def plan(self) -> StepPlan | None:
        """Decide the next step; None if there is nothing to compute."""
        self._serve_flushes()
        if not self._by_rid:
            return None
        while True:
            plan = self._planner.plan()
            for request, reason in plan.failed:
                logger.warning("%s failed: %s", request.rid, reason.message)
                self._end(request, reason)
            if plan.rows or not self._by_rid:
                return plan if plan.rows else None
            assert plan.failed, "requests are open, and none can go on"

    def launch(self, plan: StepPlan) -> StepInFlight:
        """Compute the planned rows."""
        step = self._builder.build(plan.rows)
        output = self._executor.execute(step.batch, step.sample_rows, step.prompt_logprob_rows)
        return StepInFlight(step, output)

    def absorb(self, in_flight: StepInFlight) -> None:
        """Take the results in: cache prompts, append tokens, end what has ended."""
        step, output = in_flight.step, in_flight.output
        for request, scores in zip(step.scored_requests, output.prompt_logprobs, strict=True):
            request.prompt_logprobs.extend(scores)
        for row in step.rows:
            was_decoding = row.request.is_decoding
            row.request.num_computed += row.num_new
            if not was_decoding:
                self._cache_prompt(row.request)
        for request, sampled in zip(step.sampled_requests, output.sampled, strict=True):
            self._absorb_token(request, sampled)
        for row in step.rows:
            request = row.request
            if request.lease is not None and request.num_uncomputed == 0:
                self._end(request, FinishReason(type="length"))  # max_new_tokens is 0
        self._counters.steps += 1
        self._log.step(step, self._queues, self._memory, self._planner.forecast.ratio)
        if not self._by_rid:
            self._on_idle()

    def _cache_prompt(self, request: Request) -> None:
        assert request.lease is not None, request.rid
        self._memory.commit(request.lease, request.all_tokens(), request.num_computed)

    def _absorb_token(self, request: Request, sampled: SampledToken) -> None:
        if sampled.error is not None:
            self._end(request, _failure(sampled.error, 500))
            return
        request.append(sampled.token_id)
        if request.first_token_seconds is None:
            request.first_token_seconds = self._clock()
        self._counters.generated_tokens += 1
        if sampled.logprobs is not None:
            request.output_logprobs.append(sampled.logprobs)
        try:
            reason = finish_after(request, self._config.eos_token_ids)
        except ServingError as error:  # a stop_regex that takes too long ends its own request only
            reason = _failure(error.message, error.status_code, error.error_type)
        if reason is not None:
            self._end(request, reason)
        else:
            self._outbox.progress(request)

    # The end of a request

    def _end(self, request: Request, reason: FinishReason) -> None:
        """Release what an accepted request holds and send its last delta."""
        if request.lease is not None:
            self._planner.release(request)
        elif request in self._queues.waiting:
            self._queues.waiting.remove(request)
        del self._by_rid[request.rid]
        self._finish(request, reason)

    def _finish(self, request: Request, reason: FinishReason) -> None:
        if reason.type == "abort":
            self._counters.aborted += 1
        else:
            self._counters.finished += 1
        self._outbox.finish(request, reason)
        logger.debug("%s ended: %s", request.rid, reason.type)

    def _on_idle(self) -> None:
        self._planner.forecast.reset()
        self._log.idle()
        self._memory.check_identity()
        kv = self._memory.stats()
        assert kv.protected == 0 and kv.held == 0, f"KV is held with no request open: {kv}"

    # Control

    def _serve_flushes(self) -> None:
        now = self._clock()
        for flush in list(self._flushes):
            if not self._by_rid:
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
        self._counters.evicted_tokens = self._memory.evicted_tokens_total
        return SchedulerState(
            call_id=call_id,
            kv=self._memory.stats(),
            num_running=len(self._queues.active),
            num_waiting=len(self._queues.waiting),
            new_token_ratio=self._planner.forecast.ratio,
            generated_tokens_per_second=self._log.tokens_per_second,
            counters=self._counters,
        )

    # Taking out

    @property
    def is_idle(self) -> bool:
        """Whether no request is open and no call is pending."""
        return not self._by_rid and not self._flushes

    @property
    def has_work(self) -> bool:
        """Whether a request is open or a call is pending."""
        return not self.is_idle

    def take_token_deltas(self) -> list[TokenDelta]:
        """Return and forget the deltas since the last call."""
        return self._outbox.take()

    def take_replies(self) -> list[FlushDone | SchedulerState]:
        """Return and forget the replies since the last call."""
        replies, self._replies = self._replies, []
        return replies


def _failure(
    message: str, status_code: int, error_type: str = "internal_server_error"
) -> FinishReason:
    return FinishReason(
        type="abort", message=message, status_code=status_code, error_type=error_type
    )
