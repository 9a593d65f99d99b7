"""The scheduler process's loop: messages in, deltas and replies out, no spinning while idle."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import msgspec
import pytest
import zmq

from runtime.srt.messages import (
    AbortRequest,
    FlushDone,
    Progress,
    SchedulerState,
    Stop,
    ToDetokenizer,
    ToHost,
    TokenBatch,
    TokenDelta,
    ToScheduler,
)
from runtime.srt.processes.channels import Inbox, IpcDirectory, Outbox, address
from runtime.srt.processes.scheduler_process import StepWatchdog, serve


class OneDeltaPerAbort:
    """A scheduler that answers each abort with one delta and one reply at its next step."""

    has_work = False

    def __init__(self) -> None:
        self.num_steps = 0
        self._pending: list[str] = []
        self._deltas: list[TokenDelta] = []

    def receive(self, message: ToScheduler) -> None:
        assert isinstance(message, AbortRequest) and message.rid is not None
        self._pending.append(message.rid)

    def step(self) -> bool:
        self.num_steps += 1
        if not self._pending:
            return False
        progress = Progress(
            rid=self._pending.pop(0),
            token_ids=[],
            prompt_tokens=1,
            completion_tokens=0,
            cached_tokens=0,
        )
        self._deltas.append(TokenDelta(progress))
        return True

    def take_token_deltas(self) -> list[TokenDelta]:
        taken, self._deltas = self._deltas, []
        return taken

    def take_replies(self) -> list[FlushDone | SchedulerState]:
        return [FlushDone(1, True, "")] if self.num_steps == 1 else []


class Rig:
    """The loop on a thread, with the sockets of its neighbours."""

    def __init__(self, directory: IpcDirectory, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        where = {name: address(directory.path, name) for name in ("s", "d", "h")}
        inbox = Inbox(context, where["s"], msgspec.msgpack.Decoder(ToScheduler))
        to_detokenizer, to_host = Outbox(context, where["d"]), Outbox(context, where["h"])
        self.detokenizer = Inbox(context, where["d"], msgspec.msgpack.Decoder(ToDetokenizer))
        self.host = Inbox(context, where["h"], msgspec.msgpack.Decoder(ToHost))
        self.to_scheduler = Outbox(context, where["s"])
        self.scheduler = OneDeltaPerAbort()
        self.thread = threading.Thread(
            target=serve,
            args=(self.scheduler, inbox, to_detokenizer, to_host, StepWatchdog(100)),
        )
        self._ends = (inbox, self.detokenizer, self.host, to_detokenizer, to_host)
        self.thread.start()

    def stop(self) -> None:
        self.to_scheduler.send(Stop())
        self.thread.join(5)
        assert not self.thread.is_alive()

    def close(self) -> None:
        if self.thread.is_alive():
            self.stop()
        for end in (*self._ends, self.to_scheduler):
            end.close()


@pytest.fixture
def rig() -> Iterator[Rig]:
    directory = IpcDirectory()
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    one = Rig(directory, context)
    yield one
    one.close()
    context.term()
    directory.close()


def test_deltas_go_to_the_detokenizer_and_replies_to_the_host(rig: Rig) -> None:
    rig.to_scheduler.send(AbortRequest("a"))

    assert rig.detokenizer.wait(5)
    (batch,) = rig.detokenizer.drain()
    assert isinstance(batch, TokenBatch)
    assert [delta.progress.rid for delta in batch.deltas] == ["a"]
    assert rig.host.wait(5)
    assert rig.host.drain() == [FlushDone(1, True, "")]


def test_an_idle_loop_does_not_spin_and_wakes_at_once(rig: Rig) -> None:
    time.sleep(0.3)
    num_idle_steps = rig.scheduler.num_steps
    waits = []
    for rid in ("a", "b", "c"):
        begun = time.monotonic()
        rig.to_scheduler.send(AbortRequest(rid))
        assert rig.detokenizer.wait(5)
        waits.append(time.monotonic() - begun)
        rig.detokenizer.drain()

    # A loop that only looks now and then would let each of them wait; a busy machine one of them.
    assert min(waits) < 0.5
    assert num_idle_steps <= 3


def test_stop_ends_the_loop(rig: Rig) -> None:
    rig.stop()
