"""The pool has the promised layout and takes memory only where it is written."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.tiny_models import save_tiny_model

from runtime.srt.loading.model_config import ModelConfig
from runtime.srt.memory.host_kv_pool import HostKvPool
from runtime.srt.memory.kv_layout import bytes_per_token
from runtime.srt.memory.kv_pool import KvPool


def resident_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmRSS")


def make_pool(folder: Path, num_slots: int) -> tuple[ModelConfig, KvPool]:
    save_tiny_model(folder, "llama-gqa")
    config = ModelConfig.load(folder, {})
    return config, KvPool(config, num_slots, torch.bfloat16, torch.device("cpu"))


def test_layout_and_size_are_as_promised(tmp_path: Path) -> None:
    config, pool = make_pool(tmp_path, 10)

    assert pool.k.shape == pool.v.shape == (2, 10, 2, 16)
    assert pool.k.is_contiguous() and pool.k.dtype == torch.bfloat16
    assert pool.num_bytes == 10 * bytes_per_token(config, "bfloat16") == 10 * 2 * 2 * 2 * 16 * 2
    assert not pool.k.any() and not pool.v.any()


@pytest.mark.parametrize(("dtype", "width"), [("bfloat16", 16), ("float32", 16), ("int8", 20)])
def test_the_engines_pool_has_the_same_layout(dtype: str, width: int, tmp_path: Path) -> None:
    config, _ = make_pool(tmp_path, 1)

    pool = HostKvPool(config, 10, dtype)

    assert pool.k.shape == pool.v.shape == (2, 10, 2, width)  # int8: and four bytes of scale
    assert pool.k.flags.c_contiguous and pool.k.flags.writeable
    assert pool.num_bytes == 10 * bytes_per_token(config, dtype)
    assert not pool.k.any() and not pool.v.any()


def test_writes_reach_their_slots_only(tmp_path: Path) -> None:
    _, pool = make_pool(tmp_path, 10)
    k, v = torch.randn(2, 3, 2, 16).bfloat16()

    pool.write(1, torch.tensor([7, 2, 5]), k, v)

    assert torch.equal(pool.k[1][[7, 2, 5]], k) and torch.equal(pool.v[1][[7, 2, 5]], v)
    assert not pool.k[0].any() and not pool.k[1][[0, 1, 3, 4, 6, 8, 9]].any()


def test_an_untouched_pool_takes_no_memory(tmp_path: Path) -> None:
    before = resident_bytes()

    _, pool = make_pool(tmp_path, 5_000_000)

    assert pool.num_bytes > 1 << 30
    assert resident_bytes() - before < 64 << 20
