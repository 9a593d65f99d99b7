"""The scheduler process: sockets and a loop around Scheduler's receive and step.

Started by child.main. It alone imports torch, and only for the torch reference. Blocks while there
is nothing to do; a step that takes longer than the watchdog allows ends the process with the stacks
of all threads on stderr.
"""

from __future__ import annotations

import faulthandler
import gc
import logging
import threading
import time
from pathlib import Path
from typing import Protocol

import msgspec
import zmq

from ..loading.model_config import ModelConfig
from ..messages import GrammarReady, SchedulerReply, Stop, TokenBatch, TokenDelta, ToScheduler
from ..scheduling.build import build_scheduler
from .channels import DETOKENIZER, HOST, SCHEDULER, Inbox, Outbox, address
from .child import ChildSpec, settle_memory

logger = logging.getLogger(__name__)

_IDLE_WAIT_SECONDS = 1.0  # pending flushes time out at this grain
_COLLECT_SECONDS = 60.0  # between two full garbage collections, which wait for an idle moment
_BLOCKED_WAIT_SECONDS = 0.01  # work is there, but nothing of it can go on before a message or time


class StepScheduler(Protocol):
    """What the loop needs of a scheduler."""

    @property
    def has_work(self) -> bool: ...

    def receive(self, message: ToScheduler) -> None: ...

    def step(self) -> bool: ...

    def take_token_deltas(self) -> list[TokenDelta]: ...

    def take_replies(self) -> list[SchedulerReply]: ...


class StepWatchdog:
    """Ends the process when step() is busy for longer than timeout_seconds, give or take a quarter.

    Built on faulthandler's timer, which fires even while a kernel holds the interpreter lock.
    """

    def __init__(self, timeout_seconds: float) -> None:
        self._timeout = timeout_seconds
        self._armed_at: float | None = None

    def step_begins(self) -> None:
        """Start the clock; arming anew at each step would cost a thread each."""
        now = time.monotonic()
        if self._armed_at is None or now - self._armed_at > self._timeout / 4:
            faulthandler.dump_traceback_later(self._timeout, exit=True)
            self._armed_at = now

    def goes_idle(self) -> None:
        """Stop the clock."""
        if self._armed_at is not None:
            faulthandler.cancel_dump_traceback_later()
            self._armed_at = None


def run(spec: ChildSpec) -> None:
    """Load the model, report its facts, then serve until told to stop."""
    args = spec.args
    directory = Path(spec.ipc_directory)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    # Bound before the model loads: what is sent meanwhile waits here.
    inbox = Inbox(context, address(directory, SCHEDULER), msgspec.msgpack.Decoder(ToScheduler))
    to_detokenizer = Outbox(context, address(directory, DETOKENIZER))
    to_host = Outbox(context, address(directory, HOST))
    folder = Path(spec.folder)
    model = ModelConfig.load(folder, args.model_overrides)
    to_itself = Outbox(context, address(directory, SCHEDULER))
    one_at_a_time = threading.Lock()  # sockets are not for several threads

    def announce(key: str) -> None:
        with one_at_a_time:
            to_itself.send(GrammarReady(key))

    scheduler, facts = build_scheduler(
        folder,
        model,
        args,
        Path(spec.tokenizer_folder),
        announce,
    )
    settle_memory()
    # A full collection looks at all that thousands of waiting requests hold: tenths of a second in
    # the middle of a step. Nothing that a step leaves behind needs one; see serve().
    gc.set_threshold(20_000, 50, 1_000_000)
    to_host.send(facts)
    serve(scheduler, inbox, to_detokenizer, to_host, StepWatchdog(args.watchdog_timeout))
    inbox.close()
    to_detokenizer.close()
    to_host.close()
    to_itself.close()
    context.term()


def serve(
    scheduler: StepScheduler,
    inbox: Inbox[ToScheduler],
    to_detokenizer: Outbox,
    to_host: Outbox,
    watchdog: StepWatchdog,
) -> None:
    """Run steps until a Stop arrives."""
    collected_at = time.monotonic()
    while True:
        for message in inbox.drain():
            if isinstance(message, Stop):
                return
            scheduler.receive(message)
        watchdog.step_begins()
        is_busy = scheduler.step()
        if deltas := scheduler.take_token_deltas():
            to_detokenizer.send(TokenBatch(deltas))
        for reply in scheduler.take_replies():
            to_host.send(reply)
        if not is_busy:
            watchdog.goes_idle()
            if not scheduler.has_work and time.monotonic() - collected_at > _COLLECT_SECONDS:
                gc.collect()
                collected_at = time.monotonic()
            inbox.wait(_BLOCKED_WAIT_SECONDS if scheduler.has_work else _IDLE_WAIT_SECONDS)
