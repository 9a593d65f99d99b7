"""Child processes of the benchmark: in a session of their own, measured and ended as a tree."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil  # type: ignore[import-untyped]  # ships no type information

STOP_SECONDS = 20.0
LOG_TAIL_CHARS = 3000


class Child:
    """A process with its log in a temporary file; stdin and stdout are pipes on demand."""

    def __init__(
        self,
        command: Sequence[str],
        env: Mapping[str, str] | None = None,
        *,
        talks: bool = False,
    ) -> None:
        handle, name = tempfile.mkstemp(prefix="bench-", suffix=".log")
        self._log_path = Path(name)
        with os.fdopen(handle, "wb") as log:
            self.process = subprocess.Popen(
                list(command),
                stdin=subprocess.PIPE if talks else subprocess.DEVNULL,
                stdout=subprocess.PIPE if talks else log,
                stderr=log,
                env={**os.environ, **(env or {})},
                start_new_session=True,
            )

    def log(self) -> str:
        """Return what the child has logged so far."""
        if not self._log_path.exists():
            return ""
        return self._log_path.read_text(encoding="utf-8", errors="replace")

    def log_tail(self) -> str:
        """Return the end of the log, for an error message."""
        return self.log()[-LOG_TAIL_CHARS:]

    def wait_for_line(self, pattern: re.Pattern[str], timeout_seconds: float) -> re.Match[str]:
        """Return the first match of pattern in the log; raises RuntimeError if none comes."""
        deadline = time.monotonic() + timeout_seconds
        while time.monotonic() < deadline:
            ended = self.process.poll() is not None
            if found := pattern.search(self.log()):
                return found
            if ended:
                raise RuntimeError(
                    f"ended with status {self.process.returncode}: {self.log_tail()}"
                )
            time.sleep(0.02)
        raise RuntimeError(f"not ready after {timeout_seconds:g} s: {self.log_tail()}")

    def stop(self) -> None:
        """End the child and its children: politely, then by force. Safe to call twice."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(STOP_SECONDS)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)  # its session: start_new_session above
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        self._log_path.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class Usage:
    """CPU seconds so far: of a tree of processes, of this one, and of the whole machine."""

    tree: float
    own: float
    machine: float


def read_usage(pid: int) -> Usage:
    """Return the CPU time of pid with its children, of this process, and of all cores."""
    own = psutil.Process().cpu_times()
    machine = psutil.cpu_times()
    busy = machine.user + machine.system + machine.nice + machine.irq + machine.softirq
    return Usage(tree=_tree_cpu(pid), own=own.user + own.system, machine=busy)


def proportional_memory_bytes(pid: int) -> int:
    """Return the PSS of pid with all its children: shared pages count once, split over them."""
    total = 0
    for process in _tree(pid):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1]) * 1024
    return total


def free_port() -> int:
    """Return a port of 127.0.0.1 that is free now, for peers that cannot choose one themselves."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _tree_cpu(pid: int) -> float:
    total = 0.0
    for process in _tree(pid):
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            total += times.user + times.system
    return total


def _tree(pid: int) -> list[psutil.Process]:
    try:
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []
