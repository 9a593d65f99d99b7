"""A child process of an engine: how it is started, what it is told, and how it begins.

Children are fresh interpreters that run `main` here. Unlike multiprocessing's spawn this imports
nothing of the user's script, so Engine(...) needs no __main__ guard, and leaves no helper process.
The parent sends the spec on stdin, so that a child can import what it needs before the model is
known.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec
import zmq

from ..errors import ServingError
from ..messages import StartFailed
from ..server_args import ServerArgs
from .channels import HOST, Outbox, address
from .process_logging import configure_logging

logger = logging.getLogger(__name__)

Role: TypeAlias = Literal["scheduler", "detokenizer", "grammars", "resolve"]

_MODULES: dict[str, str] = {
    "scheduler": "scheduler_process",
    "detokenizer": "detokenizer_process",
    "grammars": "grammar_process",
    "resolve": "resolve_process",
}
_BOOT = (
    "import sys, json; sys.path[:] = json.loads(sys.argv[2]); "
    "from runtime.srt.processes.child import main; main(sys.argv[1])"
)
_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_LAST_WORDS_SECONDS = 1.0


class ChildSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What a child is told at its start; server_args are ServerArgs' fields without the keys."""

    parent_pid: int
    ipc_directory: str
    folder: str
    tokenizer_folder: str
    inbox: str = ""  # the name it listens under, of a role that may have several in a row
    server_args: dict[str, Any]  # the values are of many types; ServerArgs checks them again

    @property
    def args(self) -> ServerArgs:
        """server_args as the checked object."""
        return ServerArgs(**self.server_args)


class Child:
    """A started child process, as its parent sees it.

    It dies with the thread that makes this object: make it on one that lives as long as the engine.
    """

    def __init__(
        self, role: Role, *, num_threads: int | None = None, wants_output: bool = False
    ) -> None:
        self.role = role
        environment = dict(os.environ)
        # OpenMP teams that spin at their barriers starve the other processes of a small machine.
        environment.setdefault("OMP_WAIT_POLICY", "passive")
        if num_threads is not None:
            environment["OMP_NUM_THREADS"] = environment["OPENBLAS_NUM_THREADS"] = str(num_threads)
        self.process = subprocess.Popen(
            # -P: a file of the current folder must not stand in for a module of the library.
            [sys.executable, "-P", "-c", _BOOT, role, json.dumps(sys.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE if wants_output else None,
            env=environment,
        )

    def tell(self, spec: ChildSpec) -> None:
        """Send the spec; a child that has died already is noticed by its exit code, not here."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(msgspec.json.encode(spec))
        self.hang_up()

    def ask(self, spec: ChildSpec) -> bytes:
        """Send the spec and return what the child writes until it ends; blocks for as long."""
        return self.process.communicate(msgspec.json.encode(spec))[0]

    def hang_up(self) -> None:
        """Let a child that was told nothing yet end; say nothing to one that was."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()

    def kill(self) -> None:
        """End the process at once and reap it; one that has ended is left alone."""
        self.process.kill()
        self.process.wait()
        self.hang_up()


def main(role: str) -> None:
    """Run the child process `role` to its end; the exit code tells how it went."""
    parent_pid = os.getppid()
    stay_with_parent(parent_pid, role)
    if role != "resolve":
        gc.disable()  # until settle_memory: nothing of what a start makes is garbage
    # The parent alone decides when children end: ctrl-C and service managers signal whole groups.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    module = importlib.import_module(f".{_MODULES[role]}", __package__)
    data = sys.stdin.buffer.read()
    if not data:
        sys.exit(1)  # the parent gave up before it knew the model
    spec = msgspec.json.decode(data, type=ChildSpec)
    if spec.parent_pid != parent_pid:
        sys.exit(1)  # it died before the death signal was set
    configure_logging(role, spec.server_args["log_level"])
    try:
        module.run(spec)
    except ServingError as error:
        logger.debug("start failed", exc_info=True)
        _report_failure(spec, role, error.message)
        sys.exit(1)
    except Exception:
        logger.exception("the %s process ends after an unexpected error", role)
        sys.exit(1)


def settle_memory() -> None:
    """Start the garbage collector, with what start-up made out of its sight.

    Looking through it once first would find next to nothing, for up to 0.1 s.
    """
    gc.freeze()
    gc.enable()


def _report_failure(spec: ChildSpec, role: str, message: str) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    outbox = Outbox(context, address(Path(spec.ipc_directory), HOST))
    outbox.send(StartFailed(role, message))
    outbox.close(linger_seconds=_LAST_WORDS_SECONDS)
    context.term()


def stay_with_parent(parent_pid: int, role: str) -> None:
    """Make this process die when its parent does, however the parent ends."""
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(_PR_SET_NAME, f"radix-{role}".encode()[:15], 0, 0, 0)
        if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) == 0:
            if os.getppid() != parent_pid:
                os._exit(1)
            return
    threading.Thread(target=_watch_parent, args=(parent_pid,), daemon=True).start()


def _watch_parent(parent_pid: int) -> None:
    while os.getppid() == parent_pid:
        time.sleep(0.5)
    os._exit(1)
