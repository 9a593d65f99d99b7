"""Free memory is the least of what the host and every enclosing control group leave."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from runtime.srt.errors import ConfigError
from runtime.srt.execution.host_limits import free_memory_bytes, usable_cores

MIB = 1 << 20


@pytest.fixture
def host(tmp_path: Path) -> Path:
    write(tmp_path, "proc/meminfo", "MemTotal: 9999999 kB\nMemAvailable:  1048576 kB\n")
    write(tmp_path, "proc/self/cgroup", "0::/outer/inner\n")
    return tmp_path


def write(root: Path, name: str, content: str) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(content)


def test_without_limits_the_host_decides(host: Path) -> None:
    write(host, "sys/fs/cgroup/outer/inner/memory.max", "max\n")
    write(host, "sys/fs/cgroup/outer/inner/memory.current", "5\n")

    assert free_memory_bytes(host) == 1024 * MIB


def test_an_enclosing_group_limits_too(host: Path) -> None:
    write(host, "sys/fs/cgroup/outer/memory.max", str(300 * MIB))
    write(host, "sys/fs/cgroup/outer/memory.current", str(100 * MIB))

    assert free_memory_bytes(host) == 200 * MIB


def test_file_cache_counts_as_free(host: Path) -> None:
    group = "sys/fs/cgroup/outer/inner"
    write(host, f"{group}/memory.max", str(300 * MIB))
    write(host, f"{group}/memory.current", str(290 * MIB))
    write(host, f"{group}/memory.stat", f"anon {90 * MIB}\ninactive_file {200 * MIB}\n")

    assert free_memory_bytes(host) == 210 * MIB


def test_the_older_layout_is_read(host: Path) -> None:
    write(host, "sys/fs/cgroup/memory/memory.limit_in_bytes", str(500 * MIB))
    write(host, "sys/fs/cgroup/memory/memory.usage_in_bytes", str(400 * MIB))

    assert free_memory_bytes(host) == 100 * MIB


def test_a_used_up_limit_leaves_nothing(host: Path) -> None:
    write(host, "sys/fs/cgroup/memory.max", str(100 * MIB))
    write(host, "sys/fs/cgroup/memory.current", str(101 * MIB))

    assert free_memory_bytes(host) == 0


def test_an_unreadable_host_asks_for_the_flag(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="set --max-total-tokens"):
        free_memory_bytes(tmp_path)


def test_this_host_has_memory_and_cores() -> None:
    assert free_memory_bytes() > 0
    assert 1 <= usable_cores() <= len(os.sched_getaffinity(0))


@pytest.mark.parametrize(("quota", "cores"), [("50000 100000", 1), ("100000 100000", 1)])
def test_a_cpu_quota_limits_the_cores(quota: str, cores: int, tmp_path: Path) -> None:
    write(tmp_path, "sys/fs/cgroup/cpu.max", quota)

    assert usable_cores(tmp_path) == cores
