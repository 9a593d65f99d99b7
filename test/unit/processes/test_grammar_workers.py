"""GrammarWorkers with a forking process that is played by the test."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Awaitable, Callable
from typing import cast

import pytest

from runtime.srt.messages import CheckGrammar
from runtime.srt.processes.channels import Outbox
from runtime.srt.processes.child import Child
from runtime.srt.processes.grammar_service import Worker, WorkerEnd
from runtime.srt.processes.grammar_workers import GrammarWorkers


class PlayedChild:
    """Both the child and its process; what it writes comes through a real pipe."""

    def __init__(self) -> None:
        read_end, self._write_end = os.pipe()
        self.stdout = os.fdopen(read_end, "rb")
        self.signals: list[int] = []
        self._exit_code: int | None = None
        self._ended = threading.Event()

    @property
    def process(self) -> PlayedChild:
        return self

    def worker_ends(self, exit_code: int) -> None:
        os.write(self._write_end, b"%d\n" % exit_code)

    def poll(self) -> int | None:
        return self._exit_code

    def wait(self) -> int:
        self._ended.wait(5)
        assert self._exit_code is not None
        return self._exit_code

    def send_signal(self, number: int) -> None:
        self.signals.append(number)

    def kill(self) -> None:
        if self._exit_code is None:
            self._exit_code = -signal.SIGKILL
            os.close(self._write_end)
            self._ended.set()


class PlayedChannel:
    def __init__(self, target: str) -> None:
        self.target = target
        self.is_closed = False

    def send(self, message: CheckGrammar) -> None:
        pass

    def close(self) -> None:
        self.is_closed = True


class Stage:
    def __init__(self) -> None:
        self.children: list[PlayedChild] = []
        self.channels: list[PlayedChannel] = []
        self.ends: asyncio.Queue[tuple[Worker, WorkerEnd]] = asyncio.Queue()
        self.workers = GrammarWorkers(
            self._start, self._open, lambda *end: self.ends.put_nowait(end)
        )

    def _start(self, name: str) -> Child:
        self.children.append(PlayedChild())
        return cast(Child, self.children[-1])

    def _open(self, target: str) -> Outbox:
        self.channels.append(PlayedChannel(target))
        return cast(Outbox, self.channels[-1])

    def started(self) -> Worker:
        """A worker that has reported ready."""
        worker = self.workers.start_worker()
        self.workers.worker_is_ready(self.channels[-1].target)
        return worker

    def watch_has_ended(self) -> None:
        for thread in threading.enumerate():
            if thread.name.startswith("watch-grammars"):
                thread.join(5)

    async def end(self) -> tuple[Worker, WorkerEnd]:
        return await asyncio.wait_for(self.ends.get(), 5)


def run(play: Callable[[Stage], Awaitable[None]]) -> None:
    async def played() -> None:
        stage = Stage()
        try:
            await play(stage)
        finally:
            for child in stage.children:
                child.kill()

    asyncio.run(played())


def test_the_next_worker_is_of_the_same_process_and_has_an_inbox_of_its_own() -> None:
    async def play(stage: Stage) -> None:
        first = stage.started()
        stage.children[0].worker_ends(-signal.SIGPROF)

        assert await stage.end() == (first, WorkerEnd.OUT_OF_TIME)
        second = stage.workers.start_worker()
        assert len(stage.children) == 1
        assert stage.channels[0].target != stage.channels[1].target
        assert first.is_ready and not second.is_ready

    run(play)


@pytest.mark.parametrize(
    ("exit_code", "end"),
    [
        (-signal.SIGPROF, WorkerEnd.OUT_OF_TIME),
        (-signal.SIGKILL, WorkerEnd.KILLED),
        (-signal.SIGTERM, WorkerEnd.KILLED),
        (-signal.SIGSEGV, WorkerEnd.FAILED),
        (-signal.SIGABRT, WorkerEnd.FAILED),
        (1, WorkerEnd.FAILED),
    ],
)
def test_how_a_worker_ended_is_told(exit_code: int, end: WorkerEnd) -> None:
    async def play(stage: Stage) -> None:
        worker = stage.started()
        stage.children[0].worker_ends(exit_code)

        assert await stage.end() == (worker, end)

    run(play)


def test_killing_a_worker_spares_the_process_that_makes_the_next_one() -> None:
    async def play(stage: Stage) -> None:
        first = stage.started()
        first.kill()
        second = stage.started()  # before the end of the first is known
        stage.children[0].worker_ends(-signal.SIGKILL)
        stage.children[0].worker_ends(-signal.SIGSEGV)

        assert await stage.end() == (second, WorkerEnd.FAILED)
        assert stage.children[0].signals == [signal.SIGUSR1]
        assert stage.channels[0].is_closed
        assert len(stage.children) == 1

    run(play)


def test_a_worker_whose_end_is_known_is_not_killed_again() -> None:
    async def play(stage: Stage) -> None:
        worker = stage.started()
        stage.children[0].worker_ends(1)
        await stage.end()
        worker.kill()

        assert stage.children[0].signals == []

    run(play)


def test_one_that_ends_while_nobody_has_it_is_passed_over() -> None:
    async def play(stage: Stage) -> None:
        first = stage.started()
        stage.children[0].worker_ends(1)
        assert (await stage.end())[0] is first
        stage.children[0].worker_ends(1)  # the second, which nobody asked for
        stage.children[0].kill()  # its last words come after all others
        await asyncio.to_thread(stage.watch_has_ended)

        assert stage.ends.empty()

    run(play)


def test_killing_a_worker_that_is_not_there_yet_ends_what_should_have_made_it() -> None:
    async def play(stage: Stage) -> None:
        stage.workers.start_worker().kill()
        stage.workers.start_worker()

        assert stage.children[0].poll() == -signal.SIGKILL
        assert len(stage.children) == 2

    run(play)


def test_the_end_of_the_process_is_that_of_its_worker_and_the_next_has_a_new_one() -> None:
    async def play(stage: Stage) -> None:
        worker = stage.started()
        stage.children[0].kill()

        assert await stage.end() == (worker, WorkerEnd.KILLED)
        stage.workers.start_worker()
        assert len(stage.children) == 2

    run(play)


def test_closing_ends_the_process() -> None:
    async def play(stage: Stage) -> None:
        stage.started()
        stage.workers.close()

        assert stage.children[0].poll() == -signal.SIGKILL

    run(play)
