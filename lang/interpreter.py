"""Executes the steps of one state in order, on the shared loop, without a thread of its own.

Steps that only change text are executed at once by whoever adds them, if nothing is before them.
From the first call on a task of the loop owns the state until no step is left.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import aclosing

from .backends.protocol import Output
from .caller import current_caller
from .choices import decide
from .errors import ProgramCancelled
from .expressions import Gen, Select
from .loop_thread import wait_async
from .promise import Promise
from .run import Run
from .sampling import Sampling
from .steps import (
    AddText,
    Adopt,
    Call,
    CloseRole,
    CloseScope,
    OpenRole,
    OpenScope,
    Split,
    Step,
    fail_step,
)
from .text_feed import TextFeed
from .transcript import Transcript
from .variables import Variable


class Interpreter:
    """The queue and the transcript of one state."""

    def __init__(self, run: Run) -> None:
        self.transcript = Transcript()
        self.feed = TextFeed()
        self.error: BaseException | None = None
        self.error_was_seen = False
        self._run = run
        self._caller = run.new_caller()
        self._lock = threading.Lock()
        self._steps: deque[Step] = deque()
        self._is_busy = False
        self._task: asyncio.Task[None] | None = None
        self._waiting: list[Promise[None]] = []
        self._has_passed_gate = run.gate is None

    def submit(self, step: Step) -> None:
        """Execute step after those before it; raises the state's error if it has failed."""
        with self._lock:
            error = self.error or self._run.stop_error
            if error is None and not self._is_busy and self._execute_text(step):
                return
            if error is None:
                self._steps.append(step)
                if self._is_busy:
                    return
                self._is_busy = True
                self._run.began(self)
        if error is not None:
            fail_step(step, error)
            raise self.seen(error)
        self._run.loop.start(self._drain())

    def seen(self, error: BaseException) -> BaseException:
        """Return error, which the program is told of now."""
        self.error_was_seen = True
        return error

    def idle(self) -> Promise[None]:
        """Done when no step is left; fails with the state's error."""
        future: Promise[None] = Promise()
        with self._lock:
            if self._is_busy:
                self._waiting.append(future)
                return future
        self._finish(future)
        return future

    @property
    def is_idle(self) -> bool:
        """Whether no step is left."""
        return not self._is_busy

    def cancel(self) -> None:
        """End the call that runs now; the run's stop_error is the state's error then."""
        task = self._task
        if task is not None:
            self._run.loop.cancel(task)

    async def _drain(self) -> None:
        self._task = asyncio.current_task()
        current_caller.set(self._caller)  # of this task only
        step: Step | None = None
        try:
            while (step := self._next()) is not None:
                if self._run.stop_error is not None:
                    raise self._run.stop_error
                if not self._execute_text(step):
                    await self._execute(step)
        except asyncio.CancelledError:
            error = self._run.stop_error or ProgramCancelled("the run was cancelled")
            self._fail(error, step)
        except Exception as error:  # whatever it is belongs to those who wait
            self._fail(error, step)
        finally:
            self._task = None

    def _next(self) -> Step | None:
        with self._lock:
            if self._steps:
                return self._steps.popleft()
            waiting = self._become_idle()
        self._tell(waiting)
        return None

    def _fail(self, error: BaseException, step: Step | None) -> None:
        with self._lock:
            self.error = error
            left = [*([] if step is None else [step]), *self._steps]
            self._steps.clear()
            waiting = self._become_idle()
        for one in left:
            fail_step(one, error)
        self._tell(waiting)

    def _become_idle(self) -> list[Promise[None]]:
        self._is_busy = False
        waiting, self._waiting = self._waiting, []
        # Under the lock: a step that is added next must find the run told of this end first.
        self._run.ended(self)
        return waiting

    def _tell(self, waiting: list[Promise[None]]) -> None:
        for one in waiting:
            self._finish(one)
        self.feed.wake()

    def _finish(self, future: Promise[None]) -> None:
        if self.error is None:
            future.set_result(None)
        else:
            future.set_exception(self.error)

    def _execute_text(self, step: Step) -> bool:
        """Execute step if that takes no waiting; return whether it did."""
        match step:
            case AddText(text):
                self.transcript.add(text)
                self.feed.add(None, text)
            case OpenRole(role, call_id):
                self.transcript.open(role, call_id)
            case CloseRole():
                self.transcript.close()
            case OpenScope(mark):
                mark.length = self.transcript.length
            case CloseScope(mark, variable):
                variable.set(self.transcript.text_since(mark.length))
                self.feed.wake()
            case _:
                return False
        return True

    async def _execute(self, step: Step) -> None:
        run = self._run
        if isinstance(step, Adopt):
            self.transcript = (await wait_async(step.transcript)).copy()
            self.feed.add(None, self.transcript.text)
            return
        assert self._task is not None
        limit = _Limit(self._task, run.time_for_call())
        try:
            if isinstance(step, Split):
                await self._split(step)
            elif isinstance(step, Call):
                await self._call(step)
        except asyncio.CancelledError:
            if limit.has_passed and run.stop_error is None:
                raise run.deadline_error() from None
            raise
        finally:
            limit.end()

    async def _split(self, step: Split) -> None:
        backend = self._run.backend
        prompt = self.transcript.beginning()
        if step.num_branches > 1 and backend.abilities.keeps_prefixes and not prompt.is_empty:
            await backend.commit(prompt)
        step.transcript.set_result(self.transcript.copy())

    async def _call(self, step: Call) -> None:
        if not self._has_passed_gate and self._run.gate is not None:
            self._has_passed_gate = True
            await self._run.gate.pass_with(self.transcript.prompt())
        if isinstance(step.op, Select):
            await self._select(step.op, step.variable)
        else:
            await self._generate(step.op, step.variable)

    async def _select(self, op: Select, variable: Variable) -> None:
        scores = await self._run.backend.score(
            self.transcript.prompt(), op.choices, op.method, op.early_exit
        )
        decision = decide(op.method, scores)
        choice = op.choices[decision.winner]
        self._write(choice, variable)
        variable.set(choice, decision.meta)
        self.feed.wake()

    async def _generate(self, op: Gen, variable: Variable) -> None:
        sampling = op.sampling.over(self._run.defaults)
        outputs = await self._outputs(op, sampling, variable)
        self.transcript.add(outputs[0].text)
        values = [
            op.value_type.value(one.text, op.name, one.meta.get("finish_reason")) for one in outputs
        ]
        metas = [one.meta for one in outputs]
        if op.tools is not None:
            calls = [tuple(op.tools.with_function(call) for call in one.calls) for one in outputs]
            self.transcript.call(calls[0])
            metas = [
                {**meta, "tool_calls": list(own)} for meta, own in zip(metas, calls, strict=True)
            ]
        if (sampling.n or 1) > 1:
            variable.set(values, metas)
        else:
            variable.set(values[0], metas[0])
        self.feed.wake()

    async def _outputs(self, op: Gen, sampling: Sampling, variable: Variable) -> list[Output]:
        """What the model writes, also fed to those who read along."""
        prompt, backend = self.transcript.prompt(), self._run.backend
        if self._run.streams and op.tools is None:
            streamed = backend.stream(prompt, sampling, op.logprobs)
            return await self._follow(streamed, sampling.n or 1, variable)
        if op.tools is not None:
            outputs = await backend.call_tools(prompt, sampling, op.tools)
        else:
            outputs = await backend.generate(prompt, sampling, op.logprobs)
        for index, one in enumerate(outputs):
            self.feed.add(variable, one.text, index)
        return outputs

    async def _follow(
        self, streamed: AsyncGenerator[Output, None], num_samples: int, variable: Variable
    ) -> list[Output]:
        newest: dict[int, Output] = {}
        async with aclosing(streamed):
            async for one in streamed:
                before = newest.get(one.index)
                shown = 0 if before is None else len(before.text)
                self.feed.add(variable, one.text[shown:], one.index)
                newest[one.index] = one
        missing = [index for index in range(num_samples) if index not in newest]
        assert not missing, f"{self._run.backend.name} streamed nothing for samples {missing}"
        return [newest[index] for index in range(num_samples)]

    def _write(self, text: str, variable: Variable) -> None:
        self.transcript.add(text)
        self.feed.add(variable, text)


class _Limit:
    """Cancels a task after some seconds, unless it is ended before.

    asyncio.timeout does the same for six times the cost, which every call of a program pays.
    """

    __slots__ = ("_handle", "_task", "has_passed")

    def __init__(self, task: asyncio.Task[None], seconds: float) -> None:
        self._task = task
        self.has_passed = False
        self._handle = task.get_loop().call_later(seconds, self._pass)

    def end(self) -> None:
        self._handle.cancel()

    def _pass(self) -> None:
        self.has_passed = True
        self._task.cancel()
