"""Sockets between the processes of one engine: ZeroMQ PUSH/PULL over ipc, msgpack messages.

The receiver binds, senders connect, and the order in which they start does not matter. High water
marks are off: nothing is silently dropped, and senders never block. All sockets live in a private
directory, so two engines on one host never meet. Knows the message types only by what it is given.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

import msgspec
import zmq

from ..errors import ConfigError

logger = logging.getLogger(__name__)

SCHEDULER = "scheduler"
DETOKENIZER = "detokenizer"
HOST = "host"

_PREFIX = "radix-runtime-"
_MAX_SOCKET_PATH = 100  # sun_path holds 104 bytes on macOS, 108 on Linux, with its final zero
_ABANDONED_AFTER_SECONDS = 60.0  # a younger directory may not be locked yet by its maker
_READABLE = int(zmq.POLLIN)  # a plain number: flags of an enum are slow to combine
_DRAIN_LIMIT = 512  # messages handled before other work of the loop gets its turn

M = TypeVar("M")


class IpcDirectory:
    """A private directory (mode 0700) for the sockets of one engine, removed by close().

    A lock held on it tells a live directory from one that a killed process left behind; those are
    removed when the next engine starts.
    """

    def __init__(self) -> None:
        base = _socket_base()
        _remove_abandoned(base)
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=base))
        self._lock: int | None = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def close(self) -> None:
        """Remove the directory; a second call does nothing."""
        if self._lock is not None:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._lock)
            self._lock = None


def worker_inbox(forker: str, number: int) -> str:
    """Where the number-th worker of the process called forker listens (grammar_process.py)."""
    return f"{forker}-{number}"


def address(directory: Path, receiver: str) -> str:
    """Return the ZeroMQ address on which `receiver` listens."""
    return f"ipc://{directory / receiver}"


class Outbox:
    """The sending end of a channel. send() never blocks and never drops."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], target: str) -> None:
        self._socket = context.socket(zmq.PUSH)
        self._socket.setsockopt(zmq.SNDHWM, 0)
        self._socket.connect(target)
        self._encoder = msgspec.msgpack.Encoder()

    def send(self, message: msgspec.Struct) -> None:
        """Queue message for the receiver, in order."""
        self._socket.send(self._encoder.encode(message), zmq.NOBLOCK)

    def close(self, linger_seconds: float = 0.0) -> None:
        """Close; what is queued is still delivered within linger_seconds of context.term()."""
        self._socket.close(linger=int(linger_seconds * 1000))


class Inbox(Generic[M]):
    """The receiving end of a channel: typed messages, from any number of senders."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        target: str,
        decoder: msgspec.msgpack.Decoder[M],
    ) -> None:
        self._socket = context.socket(zmq.PULL)
        self._socket.setsockopt(zmq.RCVHWM, 0)
        self._socket.bind(target)
        self._decoder = decoder
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._loop: asyncio.AbstractEventLoop | None = None

    def drain(self, limit: int | None = None) -> list[M]:
        """Return what has arrived, at most limit messages, without waiting."""
        messages: list[M] = []
        # Asked for before each: an exception for "nothing there" costs more than a small message.
        while self._has_message() and (limit is None or len(messages) < limit):
            messages.append(self._decoder.decode(self._socket.recv(zmq.NOBLOCK)))
        return messages

    def wait(self, timeout_seconds: float) -> bool:
        """Block until a message is there or the time is over; return whether one is there."""
        return bool(self._poller.poll(int(timeout_seconds * 1000)))

    def attach(self, loop: asyncio.AbstractEventLoop, on_message: Callable[[M], None]) -> None:
        """Call on_message on loop's thread for each message from now on, until detach."""
        self._loop = loop

        def handle() -> None:
            if self._loop is None:
                return
            for message in self.drain(_DRAIN_LIMIT):
                on_message(message)
            if self._loop is not None and self._has_message():
                # The descriptor tells of no arrival again before the socket was seen empty.
                loop.call_soon(handle)

        loop.add_reader(self._socket.fileno(), handle)
        loop.call_soon(handle)

    def _has_message(self) -> bool:
        return bool(int(self._socket.get(zmq.EVENTS)) & _READABLE)

    def detach(self) -> None:
        """Stop calling back; messages stay queued."""
        if self._loop is not None:
            self._loop.remove_reader(self._socket.fileno())
            self._loop = None

    def close(self) -> None:
        """Close; what was not drained is lost."""
        self.detach()
        self._socket.close(linger=0)


def _socket_base() -> Path:
    longest = len(_PREFIX) + 8 + len(f"//{DETOKENIZER}")
    # The system's own temporary folder is the fallback: TMPDIR may be set to a deep path.
    for candidate in (tempfile.gettempdir(), "/tmp"):
        if len(os.fsencode(candidate)) + longest <= _MAX_SOCKET_PATH and os.access(
            candidate, os.W_OK | os.X_OK
        ):
            return Path(candidate)
    raise ConfigError(
        f"the temporary folder {tempfile.gettempdir()!r} is too long a path for local sockets; "
        f"set TMPDIR to one of at most {_MAX_SOCKET_PATH - longest} characters"
    )


def _remove_abandoned(base: Path) -> None:
    for path in base.glob(f"{_PREFIX}*"):
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:
            continue  # another user's, or just removed
        try:
            if time.time() - os.fstat(descriptor).st_mtime < _ABANDONED_AFTER_SECONDS:
                continue
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)
        except OSError:
            pass  # locked: its engine is alive
        finally:
            os.close(descriptor)
