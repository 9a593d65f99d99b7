"""What this host lets us use: free memory and cores, with container limits counted in.

Linux only in its sources (/proc, /sys/fs/cgroup); where a file is absent that limit does not exist.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

from ..errors import ConfigError
from ..server_args import MAX_THREADS


def free_memory_bytes(root: Path = Path("/")) -> int:
    """Bytes that can be taken without swapping: the least of what host and control groups leave.

    root is where /proc and /sys are looked for.
    """
    free = [_host_available(root)]
    for folder in _memory_groups(root):
        limit = _number(folder / "memory.max") or _number(folder / "memory.limit_in_bytes")
        used = _number(folder / "memory.current") or _number(folder / "memory.usage_in_bytes")
        if limit is not None and used is not None:
            free.append(limit - used + _reclaimable(folder))
    return max(0, min(free))


def usable_cores(root: Path = Path("/")) -> int:
    """Cores to compute on: those this process may run on and the control group's quota pays for.

    At most MAX_THREADS.
    """
    cores = len(os.sched_getaffinity(0))
    try:
        quota, period = (root / "sys/fs/cgroup/cpu.max").read_text().split()
        if quota != "max":
            cores = min(cores, math.ceil(int(quota) / int(period)))
    except (OSError, ValueError):
        pass
    return max(1, min(cores, MAX_THREADS))


def _host_available(root: Path) -> int:
    try:
        for line in (root / "proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    raise ConfigError(
        "the free memory of this host cannot be read from /proc/meminfo; set --max-total-tokens"
    )


def _memory_groups(root: Path) -> Iterator[Path]:
    """Our control group's folders from the innermost out, and the root of the older layout."""
    top = root / "sys/fs/cgroup"
    try:
        line = (root / "proc/self/cgroup").read_text().splitlines()[-1]
        inner = top / line.split(":", 2)[2].lstrip("/")
    except (OSError, IndexError):
        inner = top
    while inner != top and top in inner.parents:
        yield inner
        inner = inner.parent
    yield top
    yield top / "memory"


def _number(file: Path) -> int | None:
    """The file's number; None where it is absent or says that there is no limit."""
    try:
        value = int(file.read_text())
    except (OSError, ValueError):
        return None
    # The older layout says "no limit" with a number near 2**63.
    return value if value < 1 << 60 else None


def _reclaimable(folder: Path) -> int:
    """Bytes of file cache that count as used but are given back on demand."""
    try:
        for line in (folder / "memory.stat").read_text().splitlines():
            name, value = line.split()
            if name in ("inactive_file", "total_inactive_file"):
                return int(value)
    except (OSError, ValueError):
        pass
    return 0
