"""Runs the scheduler over a trace on a virtual clock.

A step takes the time that the cost model gives; requests that come due meanwhile are received when
it ends, and their waiting counts from when they were due. The scheduler's own code runs as in the
server; how long that takes on this machine is measured and does not enter the virtual time.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from contextlib import nullcontext
from typing import cast

import msgspec

from runtime.srt.messages import GenerateRequest, SchedulerState, StateQuery
from runtime.srt.sampling_params import SamplingParams

from .feeder import Arrival, Feeder
from .planned_step import PlannedStep
from .records import RequestRecord, RunRecords
from .setup import Setup, build_scheduler
from .trace import Trace
from .trace_executor import TraceExecutor
from .virtual_clock import VirtualClock

SAMPLE_STEPS = 16  # steps between two samples of queue and pool
IDLE_SECONDS = 1e-3  # the clock's step while requests are open and none may run
MAX_IDLE_WAITS = 1_000_000  # in a row

Progress = Callable[[int, int], None]


class Simulator:
    """One run of one trace; progress is told now and then how many requests of all have ended."""

    def __init__(self, trace: Trace, setup: Setup, progress: Progress | None = None) -> None:
        self._trace = trace
        self._setup = setup
        self._progress = progress
        self._clock = VirtualClock()
        self._feeder = Feeder(trace, setup.queue_depth)
        self._executor = TraceExecutor()
        self._scheduler = build_scheduler(setup, self._executor, self._clock)
        self._records = RunRecords()
        self._in_queue: deque[RequestRecord] = deque()  # by arrival; the admitted leave it lazily
        self._num_in_queue = 0  # never admitted yet
        self._num_ended = 0
        self._num_steps = 0

    def run(self) -> RunRecords:
        """Run until every request has ended in some way."""
        begin = time.perf_counter()
        idle_waits = 0
        while True:
            self._deliver()
            if self._scheduler.is_idle:
                due = self._feeder.next_due()
                if due is None:
                    break
                self._clock.advance_to(due)
            elif self._step():
                idle_waits = 0
            else:
                idle_waits += 1
                assert idle_waits < MAX_IDLE_WAITS, "requests are open, and none is ever run"
                self._clock.advance(IDLE_SECONDS)
        records = self._records
        assert len(records.requests) == len(self._trace.requests), "a request never came"
        assert all(one.outcome for one in records.requests.values()), "a request never ended"
        records.counters = msgspec.structs.asdict(self._state().counters)
        records.virtual_seconds = self._clock()
        records.wall_seconds = time.perf_counter() - begin
        return records

    # Arrivals

    def _deliver(self) -> None:
        while arrivals := self._feeder.take_due(self._clock(), self._num_in_queue):
            for arrival in arrivals:
                self._receive(arrival)
            self._collect()  # the scheduler may have refused some, and let others come

    def _receive(self, arrival: Arrival) -> None:
        request = arrival.request
        tokens = self._trace.prompt_tokens(request)
        record = RequestRecord(request, arrival.due, prompt_tokens=len(tokens))
        self._records.requests[request.id] = record
        room = self._setup.context_length - len(tokens)
        if request.num_output > room:
            self._fail(record, "refused")
            return
        seed = len(self._records.requests)
        record.seed = seed
        self._executor.answers[seed] = self._trace.output_tokens(request).tolist()
        self._in_queue.append(record)
        self._num_in_queue += 1
        sampling = SamplingParams(
            max_new_tokens=min(request.max_tokens, room),
            temperature=0.0,
            ignore_eos=request.ignore_eos,
        )
        self._scheduler.receive(
            GenerateRequest(
                rid=request.id,
                # The scheduler makes an array of it at once; a list would be ten times as big.
                input_ids=cast(list[int], tokens),
                sampling=sampling,
                stream=self._setup.stream,
                namespace=request.namespace,
                priority=request.priority,
                program_id=request.program,
                seed=seed,
                arrival_seconds=arrival.due,
            )
        )

    # Steps

    def _step(self) -> bool:
        scheduler, clock = self._scheduler, self._clock
        watch = _Stopwatch()
        with watch:
            plan = scheduler.plan()
        if plan is None:
            self._collect()
            return False
        planned = PlannedStep.of(plan)
        self._note_admissions(planned)
        with watch if self._setup.full_launch else nullcontext():
            in_flight = scheduler.launch(plan)
        assert in_flight is not None, "a step that is not computed needs no memory"
        clock.advance(self._setup.cost.seconds(planned.load))
        with watch:
            scheduler.absorb(in_flight)
        self._records.steps.wall_seconds.append(watch.wall)
        self._records.steps.cpu_seconds.append(watch.cpu)
        self._note_tokens(planned)
        self._collect()
        self._sample_state()
        return True

    def _note_admissions(self, planned: PlannedStep) -> None:
        now, records, queue = self._clock(), self._records.requests, self._in_queue
        if self._num_in_queue:
            for row in planned.plan.rows:
                record = records[row.request.rid]
                if record.admitted is None:
                    record.admitted = now
                    self._num_in_queue -= 1
        while queue and (queue[0].admitted is not None or queue[0].outcome is not None):
            queue.popleft()
        self._records.steps.oldest_wait.append(now - queue[0].due if queue else 0.0)

    def _note_tokens(self, planned: PlannedStep) -> None:
        now, records = self._clock(), self._records.requests
        gaps: dict[float, int] = {}  # most streams of a step have the same
        for request in planned.sampled:
            record = records[request.message.rid]
            record.num_output += 1
            last, record.last_token = record.last_token, now
            if last is None:
                record.first_token = now
                continue
            gap = now - last
            gaps[gap] = gaps.get(gap, 0) + 1
            if gap > record.worst_gap:
                record.worst_gap = gap
        self._records.steps.take_gaps(gaps)

    def _sample_state(self) -> None:
        self._num_steps += 1
        if self._num_steps % SAMPLE_STEPS:
            return
        state, steps = self._state(), self._records.steps
        steps.times.append(self._clock())
        steps.waiting.append(state.num_waiting)
        steps.running.append(state.num_running)
        steps.used_share.append((state.kv.protected + state.kv.held) / state.kv.total)
        if self._progress is not None:
            self._progress(self._num_ended, len(self._trace.requests))

    def _state(self) -> SchedulerState:
        self._scheduler.receive(StateQuery(0))
        for reply in self._scheduler.take_replies():
            if isinstance(reply, SchedulerState):
                return reply
        raise AssertionError("the scheduler does not answer a StateQuery")

    # Ends

    def _collect(self) -> None:
        for delta in self._scheduler.take_token_deltas():
            progress = delta.progress
            if progress.finish is None:
                continue
            record = self._records.requests[progress.rid]
            record.cached_tokens = progress.cached_tokens
            record.num_retractions = progress.num_retractions
            if record.admitted is None:
                self._num_in_queue -= 1
            self._executor.answers.pop(record.seed)
            if progress.finish.type == "abort":
                self._fail(record, "abort")
                continue
            expected = record.request.num_output
            assert record.num_output == progress.completion_tokens == expected, (
                f"{progress.rid} has {progress.completion_tokens} tokens, not {expected}"
            )
            self._end(record, progress.finish.type)
            self._feeder.ended(record.request, self._clock())

    def _fail(self, record: RequestRecord, outcome: str) -> None:
        self._end(record, outcome)
        for child in self._feeder.failed(record.request):
            skipped = RequestRecord(child, self._clock())
            self._records.requests[child.id] = skipped
            self._end(skipped, "skipped")

    def _end(self, record: RequestRecord, outcome: str) -> None:
        record.outcome = outcome
        record.ended = self._clock()
        self._num_ended += 1


class _Stopwatch:
    """Adds up the time of its with-blocks: wall, and CPU time of this thread alone."""

    __slots__ = ("_cpu_began", "_wall_began", "cpu", "wall")

    def __init__(self) -> None:
        self.wall = self.cpu = self._wall_began = self._cpu_began = 0.0

    def __enter__(self) -> None:
        self._wall_began, self._cpu_began = time.perf_counter(), time.thread_time()

    def __exit__(self, *_: object) -> None:
        self.cpu += time.thread_time() - self._cpu_began
        self.wall += time.perf_counter() - self._wall_began
