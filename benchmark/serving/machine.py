"""The machine: what it is, how busy it is, and its limits, measured in a process of their own."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

from .records import MACHINE, Record

_LIMITS_SECONDS = 120.0


def measure_limits(round_number: int, *, weight_bytes: float, threads: int, repeats: int) -> Record:
    """Return a record with the limits of now; see limits.py."""
    command = [sys.executable, "-m", "serving.limits", "--threads", str(threads)]
    command += ["--weight-bytes", str(int(weight_bytes)), "--repeats", str(repeats)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=_LIMITS_SECONDS
    )
    when = time.strftime("%Y-%m-%d %H:%M:%S")
    return Record(MACHINE, round_number, "limits", json.loads(done.stdout), when=when)


def describe(threads: int) -> str:
    """Return a line with commit, CPU, threads and versions."""
    return (
        f"{time.strftime('%Y-%m-%d')}, commit {_commit()}, {_cpu_name()}, {os.cpu_count()} cores, "
        f"{threads} threads, Python {platform.python_version()}, torch {version('torch')}"
    )


def busy_cores() -> float:
    """Return how many cores were in use, on average, over the last minute."""
    return os.getloadavg()[0]


def _cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def _commit() -> str:
    folder = Path(__file__).parent
    done = subprocess.run(
        ["git", "-C", str(folder), "describe", "--always", "--dirty"],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip() or "unknown"
