"""GrammarService: checks grammars in a worker process, beside everything else.

Checking and the first compile of a user's grammar may take any time and memory, so they happen
where they can be ended: a worker, the first started with the first grammar, takes one at a time and
is killed when that takes too long. Short ones go first, as a long one may take what a hundred of
them do. Equal grammars that are asked for together are checked once, and results, failures too, are
kept. The scheduler then compiles what is known to compile.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from runtime.grammars.spec import GrammarSpec

from ..errors import EngineDied, GrammarInvalid, Overloaded
from ..messages import CheckGrammar, GrammarChecked, GrammarSource

logger = logging.getLogger(__name__)

MAX_QUEUED_CHECKS = 1024
OLDEST_EVERY = 4  # of so many one is the oldest that waits, however long its text
MAX_CACHE_BYTES = 16 * 2**20  # texts of checked grammars
_MOST_SECONDS_PER_CPU_SECOND = 10.0
_START_SECONDS = 60.0  # from starting a worker to its first sign of life; xgrammar brings torch
_KILLED = "the grammar worker was killed at this grammar, and so was the next; try again"
_TOO_MUCH_MEMORY = "checking the grammar takes more memory than it may; simplify it"


class WorkerEnd(Enum):
    """How a worker ended."""

    OUT_OF_TIME = "out of time"
    KILLED = "killed"  # from outside: by a person, the kernel, or the end of its parent
    FAILED = "failed"


class Worker(Protocol):
    """A started worker process; what it answers comes to GrammarService.receive."""

    @property
    def is_ready(self) -> bool: ...

    def send(self, message: CheckGrammar) -> None: ...

    def kill(self) -> None: ...


@dataclass(slots=True, eq=False)
class _Check:
    spec: GrammarSpec
    done: asyncio.Future[GrammarSource]
    call_id: int = 0
    is_second_try: bool = False


class GrammarService:
    """Checked grammars of one engine. Lives on one event loop.

    start_worker returns a fresh worker; it, too, runs on that loop. cpu_seconds is what the worker
    gives one grammar before it ends itself; on a busy machine that may take several times as long.
    """

    def __init__(self, start_worker: Callable[[], Worker], cpu_seconds: float) -> None:
        self._start_worker = start_worker
        self._cpu_seconds = cpu_seconds
        self._timeout_seconds = _MOST_SECONDS_PER_CPU_SECOND * cpu_seconds
        self._worker: Worker | None = None
        self._queue: deque[_Check] = deque()
        self._current: _Check | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._num_calls = 0
        self._pending: dict[str, _Check] = {}
        self._known: OrderedDict[str, GrammarSource | str] = OrderedDict()  # str: why it failed
        self._known_bytes = 0
        self._closed: str | None = None  # why

    async def check(self, spec: GrammarSpec, param: str | None) -> GrammarSource:
        """Return the grammar that spec becomes; param is the field that it came in.

        Raises GrammarInvalid if it cannot be enforced or compiled, Overloaded if too many wait or
        no worker starts, EngineDied after close.
        """
        if self._closed is not None:
            raise EngineDied(self._closed)
        key = spec.key
        known = self._known.get(key)
        if known is None:
            check = self._pending.get(key) or self._enqueue(spec)
            try:
                return await asyncio.shield(check.done)
            except GrammarInvalid as error:
                raise _named(error.message, param) from None
        self._known.move_to_end(key)
        if isinstance(known, str):
            raise _named(known, param)
        return known

    def receive(self, message: GrammarChecked) -> None:
        """Take the worker's answer; one that comes too late is dropped."""
        check = self._current
        if check is None or message.call_id != check.call_id:
            return
        if message.prepared is None:
            self._settle(check, message.error or "the grammar cannot be compiled")
        else:
            self._settle(check, GrammarSource(check.spec.key, message.prepared))

    def worker_is_ready(self) -> None:
        """The worker's sign of life: it takes grammars from now on."""
        if self._current is not None:
            self._set_timer(self._timeout_seconds)

    def worker_ended(self, worker: Worker, end: WorkerEnd) -> None:
        """worker has ended; unless it was killed, the grammar it was at was too much for it."""
        worker.kill()  # only its channel is left of it
        if worker is not self._worker:
            return
        self._worker = None
        check = self._current
        if check is None:
            return
        if end is not WorkerEnd.OUT_OF_TIME and not check.is_second_try:
            # Whatever ended it may have had nothing to do with this grammar.
            check.is_second_try = True
            self._current = None
            self._queue.appendleft(check)
            self._go_on()
            return
        result: str | Overloaded
        match end:
            case WorkerEnd.OUT_OF_TIME:
                result = self._too_long
            case WorkerEnd.KILLED:
                result = Overloaded(_KILLED)
            case WorkerEnd.FAILED:
                result = _TOO_MUCH_MEMORY
        logger.warning("the grammar worker ended: %s", result)
        self._settle(check, result)

    def close(self, reason: str) -> None:
        """End the worker, and all checks with EngineDied(reason); take no more."""
        self._closed = reason
        if self._timer is not None:
            self._timer.cancel()
        if self._worker is not None:
            self._worker.kill()
            self._worker = None
        self._current = None
        self._queue.clear()
        for check in self._pending.values():
            if not check.done.done():
                check.done.set_exception(EngineDied(reason))
        self._pending.clear()

    def _enqueue(self, spec: GrammarSpec) -> _Check:
        if len(self._queue) >= MAX_QUEUED_CHECKS:
            raise Overloaded(f"{len(self._queue)} grammars wait to be checked; try again later")
        check = _Check(spec, asyncio.get_running_loop().create_future())
        # Whoever asked may have gone when it fails: then nobody looks at the exception.
        check.done.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._pending[spec.key] = check
        self._queue.append(check)
        self._go_on()
        return check

    def _go_on(self) -> None:
        if self._current is not None or not self._queue:
            return
        if self._worker is None:
            self._worker = self._start_worker()
        self._num_calls += 1
        check = self._current = self._next()
        check.call_id = self._num_calls
        self._worker.send(CheckGrammar(check.call_id, check.spec))
        self._set_timer(self._timeout_seconds if self._worker.is_ready else _START_SECONDS)

    def _next(self) -> _Check:
        oldest = self._queue[0]
        check = oldest
        if not oldest.is_second_try and self._num_calls % OLDEST_EVERY:
            check = min(self._queue, key=lambda one: len(one.spec.text))
        self._queue.remove(check)
        return check

    def _set_timer(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(seconds, self._overdue)

    def _overdue(self) -> None:
        check, worker = self._current, self._worker
        if check is None or worker is None:
            return
        self._worker = None
        was_ready = worker.is_ready
        worker.kill()
        text = self._too_long
        if not was_ready:
            text = f"the grammar worker did not start within {_START_SECONDS:g} s; try again"
        logger.warning("%s", text)
        self._settle(check, text if was_ready else Overloaded(text))

    @property
    def _too_long(self) -> str:
        return (
            f"compiling the grammar takes longer than {self._cpu_seconds:g} s "
            "(--grammar-timeout-seconds); simplify it"
        )

    def _settle(self, check: _Check, result: GrammarSource | str | Overloaded) -> None:
        """End a check, remember what is the grammar's own, and go on with the next."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._current = None
        del self._pending[check.spec.key]
        if not isinstance(result, Overloaded):
            self._remember(check.spec, result)
        if not check.done.done():
            if isinstance(result, GrammarSource):
                check.done.set_result(result)
            else:
                error = GrammarInvalid(result) if isinstance(result, str) else result
                check.done.set_exception(error)
        self._go_on()

    def _remember(self, spec: GrammarSpec, result: GrammarSource | str) -> None:
        self._known[spec.key] = result
        self._known_bytes += _size(result)
        while self._known_bytes > MAX_CACHE_BYTES:
            _, oldest = self._known.popitem(last=False)
            self._known_bytes -= _size(oldest)


def _size(result: GrammarSource | str) -> int:
    text = result if isinstance(result, str) else result.prepared.text
    return 512 + 4 * len(text)


def _named(message: str, param: str | None) -> GrammarInvalid:
    return GrammarInvalid(message if param is None else f"{param}: {message}", param=param)
