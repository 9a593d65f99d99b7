"""FlashInfer serves where it was asked for and works; else one line of the log says why not."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from support.device_rig import CONTEXT, device_args
from support.fake_flashinfer import FakeFlashInfer, Prefill
from support.tiny_models import save_tiny_model
from support.torch_kernels import TorchKernels

from runtime.srt.attention import flashinfer_backend
from runtime.srt.attention.flashinfer_backend import workspace_bytes
from runtime.srt.errors import ConfigError
from runtime.srt.execution import gpu_parts
from runtime.srt.execution.device import CpuDevice
from runtime.srt.loading.model_config import ModelConfig


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny")
    save_tiny_model(path, "llama-gqa")
    return path


def test_flashinfer_that_is_not_installed_is_told_once_and_triton_serves(
    folder: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing() -> Any:
        raise ImportError("No module named 'flashinfer'")

    monkeypatch.setattr(gpu_parts, "flashinfer_module", missing)
    args = device_args(device="cuda", attention_backend="flashinfer")
    config = ModelConfig.load(folder, {"head_dim": 64})

    with caplog.at_level(logging.WARNING):
        assert gpu_parts._flashinfer(config, args, "bfloat16") is None

    (record,) = caplog.records
    assert "cannot be imported" in record.getMessage()
    assert "triton serves instead" in record.getMessage()


def test_flashinfer_that_fails_while_it_is_imported_is_told_and_triton_serves(
    folder: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> Any:
        raise PermissionError("the cache folder cannot be made")

    monkeypatch.setattr(gpu_parts, "flashinfer_module", fail)
    config = ModelConfig.load(folder, {"head_dim": 64})
    args = device_args(device="cuda", attention_backend="flashinfer")

    with caplog.at_level(logging.WARNING):
        assert gpu_parts._flashinfer(config, args, "bfloat16") is None

    assert "PermissionError: the cache folder cannot be made" in caplog.text


def test_flashinfer_that_breaks_the_device_ends_the_start_and_names_another_backend(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(Prefill, "run", fail)
    monkeypatch.setattr(CpuDevice, "synchronize", fail)
    with pytest.raises(ConfigError, match="illegal memory .* set --attention-backend triton"):
        _tried(folder, FakeFlashInfer())


def test_the_workspace_grows_with_heads_that_share_keys_and_multiprocessors(folder: Path) -> None:
    # 2 x 132 multiprocessors x 128 queries x 32 heads x 128 values in float32 are 528 MiB.
    config = ModelConfig.load(
        folder, {"head_dim": 128, "num_attention_heads": 32, "num_key_value_heads": 1}
    )

    few, many = (workspace_bytes(config, number) for number in (8, 132))

    assert few == 512 << 20
    assert many > 2 * 132 * 128 * 32 * 128 * 4


def test_flashinfer_that_cannot_serve_the_model_is_told_and_triton_serves(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    args = device_args(device="cuda", attention_backend="flashinfer")

    with caplog.at_level(logging.WARNING):
        assert gpu_parts._flashinfer(ModelConfig.load(folder, {}), args, "bfloat16") is None

    assert "head_dim is 16" in caplog.text


def test_flashinfer_is_used_where_it_is_there(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = object()
    monkeypatch.setattr(gpu_parts, "flashinfer_module", lambda: package)
    config = ModelConfig.load(folder, {"head_dim": 64})

    forced = device_args(device="cuda", attention_backend="flashinfer")
    assert gpu_parts._flashinfer(config, forced, "bfloat16") is package
    assert gpu_parts._flashinfer(config, device_args(device="cuda"), "bfloat16") is None


def _tried(
    folder: Path, package: FakeFlashInfer, **options: Any
) -> flashinfer_backend.FlashInferAttention | None:
    config, device = ModelConfig.load(folder, {}), CpuDevice()

    def make() -> flashinfer_backend.FlashInferAttention:
        return flashinfer_backend.FlashInferAttention(
            config,
            package,
            TorchKernels().store_kv,
            lambda arrays: {name: torch.from_numpy(one) for name, one in arrays.items()},
            package.point,
            device.torch_device,
            torch.float32,
            num_multiprocessors=8,
            max_context=CONTEXT,
            kv_bytes=1000,
            **options,
        )

    stream = device.new_stream("forward")
    return gpu_parts.tried_flashinfer(make, device, stream, config, "float32")


@pytest.mark.parametrize("is_deterministic", [False, True])
def test_flashinfer_runs_every_kind_of_kernel_before_it_serves(
    folder: Path, is_deterministic: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flashinfer_backend, "_LEAST_WORKSPACE_BYTES", 1 << 20)
    package = FakeFlashInfer()

    assert _tried(folder, package, is_deterministic=is_deterministic) is not None

    kinds = {name for name, _ in package.calls}
    assert kinds == {"decode", "extend", "graph"} | (set() if is_deterministic else {"cascade"})


@pytest.mark.parametrize("at", ["make", "plan", "run"])
def test_flashinfer_that_cannot_compile_its_kernels_is_told_once_and_triton_serves(
    folder: Path, at: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("Could not find nvcc\nand more lines")

    monkeypatch.setattr(flashinfer_backend, "_LEAST_WORKSPACE_BYTES", 1 << 20)
    if at == "make":
        monkeypatch.setattr(FakeFlashInfer, "BatchDecodeWithPagedKVCacheWrapper", fail)
    else:
        monkeypatch.setattr(Prefill, at, fail)

    with caplog.at_level(logging.WARNING):
        assert _tried(folder, FakeFlashInfer()) is None

    (record,) = caplog.records
    text = record.getMessage()
    assert "RuntimeError: Could not find nvcc)" in text and "triton serves instead" in text


def test_flashinfer_that_finds_no_memory_ends_the_start_and_names_another_backend(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any, **kwargs: Any) -> Any:
        raise MemoryError

    monkeypatch.setattr(FakeFlashInfer, "BatchDecodeWithPagedKVCacheWrapper", fail)
    with pytest.raises(ConfigError, match="no memory beside .* set --attention-backend triton"):
        _tried(folder, FakeFlashInfer())
