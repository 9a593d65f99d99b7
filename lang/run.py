"""One run of a program: what its states share, and when all of them are done."""

from __future__ import annotations

import itertools
import threading
import time
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING

from .backends.protocol import Backend
from .caller import Caller
from .errors import DeadlinePassed, ProgramCancelled, ProgramError
from .loop_thread import LoopThread, shared_loop
from .prefix_gate import PrefixGate
from .promise import Promise
from .sampling import NOTHING_SET, Sampling

if TYPE_CHECKING:
    from .interpreter import Interpreter

READER_GRACE_SECONDS = 0.2


class Run:
    """The backend, defaults and deadline of a run, and the states that work for it."""

    def __init__(
        self,
        backend: Backend,
        defaults: Sampling = NOTHING_SET,
        *,
        streams: bool = False,
        timeout_seconds: float | None = None,
        gate: PrefixGate | None = None,
    ) -> None:
        _check_timeout(timeout_seconds)
        self.backend = backend
        self.defaults = defaults
        self.streams = streams
        self.gate = gate
        self.loop: LoopThread = shared_loop()
        self.stop_error: BaseException | None = None
        self.new_recorder: Callable[[], Interpreter] | None = None  # of a run that is only traced
        self._program_id = uuid.uuid4().hex
        self._branch_numbers = itertools.count()
        self._timeout_seconds = timeout_seconds
        self._deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        self._lock = threading.Lock()
        self._busy: set[Interpreter] = set()
        self._failed: list[Interpreter] = []
        self._waiting: list[Promise[None]] = []

    def new_caller(self) -> Caller:
        """Ids for one more state of this run; the first state is branch 0."""
        return Caller(self._program_id, str(next(self._branch_numbers)))

    def time_for_call(self) -> float:
        """Seconds that a call may take from now; raises DeadlinePassed if there are none."""
        if self._deadline is None:
            return self.backend.timeout_seconds
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise self.deadline_error()
        return min(left, self.backend.timeout_seconds)

    def seconds_left(self) -> float | None:
        """How long a reader may wait for this run; None without a deadline."""
        if self._deadline is None:
            return None
        # A little longer than the calls: what they end with says more.
        return max(0.0, self._deadline - time.monotonic()) + READER_GRACE_SECONDS

    def deadline_error(self) -> DeadlinePassed:
        """What a call that took too long ends with."""
        if self._deadline is not None and time.monotonic() >= self._deadline - 0.01:
            return DeadlinePassed(f"the run did not end within {self._timeout_seconds} seconds")
        return DeadlinePassed(
            f"{self.backend.name} did not answer within {self.backend.timeout_seconds} seconds"
        )

    def cancel(self, error: BaseException | None = None) -> None:
        """End all calls; what is unset fails with error, or ProgramCancelled."""
        with self._lock:
            if self.stop_error is None:
                self.stop_error = error or ProgramCancelled("the run was cancelled")
            busy = list(self._busy)
        for one in busy:
            one.cancel()

    def settled(self) -> Promise[None]:
        """Done when no state has anything left to execute; it never fails.

        To be asked for when the program has returned: what it was not told of by then ends the run,
        so a state that fails ends the wait.
        """
        future: Promise[None] = Promise()
        with self._lock:
            if self._busy and not any(self._is_unseen(one) for one in self._failed):
                self._waiting.append(future)
                return future
        future.set_result(None)
        return future

    def unseen_error(self) -> BaseException | None:
        """The first error of a state that the program has not been told of."""
        with self._lock:
            failed = list(self._failed)
        return next((one.error for one in failed if self._is_unseen(one)), None)

    @staticmethod
    def _is_unseen(state: Interpreter) -> bool:
        return state.error is not None and not state.error_was_seen

    def began(self, state: Interpreter) -> None:
        """state has something to execute."""
        with self._lock:
            self._busy.add(state)

    def ended(self, state: Interpreter) -> None:
        """state has nothing left to execute, perhaps because it failed."""
        with self._lock:
            self._busy.discard(state)
            if state.error is not None:
                self._failed.append(state)
            if self._busy and not self._is_unseen(state):
                return
            waiting, self._waiting = self._waiting, []
        for one in waiting:
            one.set_result(None)


def _check_timeout(seconds: object) -> None:
    if seconds is None:
        return
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        kind = type(seconds).__name__
        raise ProgramError(f"timeout_seconds is of type {kind}; it must be a number of seconds")
    if not seconds > 0:
        raise ProgramError(f"timeout_seconds is {seconds}; it must be above 0")
