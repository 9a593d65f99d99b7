"""GrammarWorkers: the host's side of the grammar workers, of which there is one at a time.

They are forks of one process (grammar_process.py), which is started with the first of them, and
makes the next by itself when one has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import threading
from collections.abc import Callable

from ..messages import CheckGrammar
from .channels import Outbox, worker_inbox
from .child import Child
from .grammar_service import Worker, WorkerEnd

logger = logging.getLogger(__name__)


class GrammarWorkers:
    """Hands out workers. Lives on the event loop that makes it.

    start begins a process that listens under names made of the one it is given; open_channel leads
    to such a name. on_end is told, on the loop, of a worker that was handed out and has ended.
    """

    def __init__(
        self,
        start: Callable[[str], Child],
        open_channel: Callable[[str], Outbox],
        on_end: Callable[[Worker, WorkerEnd], None],
    ) -> None:
        self._start = start
        self._open_channel = open_channel
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._num_forkers = 0
        self._forker: _Forker | None = None

    def start_worker(self) -> Worker:
        """The next worker; the one before must have ended, or been killed."""
        if self._forker is None or self._forker.child.process.poll() is not None:
            self._num_forkers += 1
            name = f"grammars-{self._num_forkers}"
            self._forker = _Forker(name, self._start(name), self._open_channel)
            self._watch(self._forker)
        return self._forker.next_worker()

    def worker_is_ready(self, inbox: str) -> None:
        """The worker that reads inbox is up."""
        if self._forker is not None:
            self._forker.ready_inbox = inbox

    def close(self) -> None:
        """End the processes at once."""
        if self._forker is not None:
            self._forker.kill()

    def _watch(self, forker: _Forker) -> None:
        ends = forker.child.process.stdout
        assert ends is not None

        def tell(callback: Callable[..., None], *args: object) -> None:
            # The loop may be closed by now: then nobody is left who wants to know.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(callback, *args)

        def watch() -> None:
            with ends:
                for line in ends:
                    tell(self._worker_ended, forker, int(line))
            tell(self._forker_ended, forker, forker.child.process.wait())

        threading.Thread(target=watch, name=f"watch-{forker.name}", daemon=True).start()

    def _worker_ended(self, forker: _Forker, exit_code: int) -> None:
        if (worker := forker.ended()) is not None:
            self._on_end(worker, _end_of(exit_code))

    def _forker_ended(self, forker: _Forker, exit_code: int) -> None:
        logger.debug("%s ended with exit code %d", forker.name, exit_code)
        if (worker := forker.drop()) is not None:  # it ended with the process that forked it
            self._on_end(worker, WorkerEnd.KILLED)


def _end_of(exit_code: int) -> WorkerEnd:
    match -exit_code:
        case signal.SIGPROF:
            return WorkerEnd.OUT_OF_TIME
        case signal.SIGKILL | signal.SIGTERM | signal.SIGINT | signal.SIGHUP:
            return WorkerEnd.KILLED
        case _:
            return WorkerEnd.FAILED


class _Forker:
    """The process that forks, and which of its workers is handed out."""

    def __init__(self, name: str, child: Child, open_channel: Callable[[str], Outbox]) -> None:
        self.name = name
        self.child = child
        self.ready_inbox: str | None = None  # of the newest worker that is up
        self._open_channel = open_channel
        self._num_ended = 0
        self._num_handed_out = 0
        self._worker: _GrammarWorker | None = None

    def next_worker(self) -> _GrammarWorker:
        # Some may have ended without having been handed out.
        self._num_handed_out = max(self._num_handed_out, self._num_ended) + 1
        inbox = worker_inbox(self.name, self._num_handed_out)
        self._worker = _GrammarWorker(self, inbox, self._open_channel(inbox))
        return self._worker

    def ended(self) -> _GrammarWorker | None:
        """One more worker has ended; return it if it is the one that was handed out last."""
        self._num_ended += 1
        return None if self._num_ended < self._num_handed_out else self.drop()

    def drop(self) -> _GrammarWorker | None:
        """Return the worker that was handed out last and is not known to have ended, until now."""
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.has_ended = True
        return worker

    def kill_worker(self) -> None:
        self.child.process.send_signal(signal.SIGUSR1)  # to nobody, if it has ended

    def kill(self) -> None:
        self.child.kill()


class _GrammarWorker:
    """See grammar_service.Worker."""

    def __init__(self, forker: _Forker, inbox: str, channel: Outbox) -> None:
        self._forker = forker
        self._inbox = inbox
        self._channel = channel
        self.has_ended = False

    @property
    def is_ready(self) -> bool:
        return self._forker.ready_inbox == self._inbox

    def send(self, message: CheckGrammar) -> None:
        """Queue message; it is read when the worker is ready."""
        self._channel.send(message)

    def kill(self) -> None:
        """End the worker at once; one that is not there yet, with the process that makes it."""
        if not self.has_ended:
            self.has_ended = True
            if self.is_ready:
                self._forker.kill_worker()
            else:
                self._forker.kill()
        self._channel.close()  # a second time does nothing
