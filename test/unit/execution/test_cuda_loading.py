"""From a folder to an executor on a device: order, sizes, and errors with a flag that helps."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from support.device_rig import MAX_ROWS, device_args, device_executor
from support.recording_device import OutOfMemory, RecordingDevice
from support.steps import batch_of_rows, greedy_rows
from support.tiny_models import save_tiny_model
from support.torch_kernels import TorchKernels

from runtime.srt.device_flags import steps_in_flight
from runtime.srt.errors import ConfigError, DeviceOutOfMemory
from runtime.srt.execution import gpu_parts, selection
from runtime.srt.execution.cuda_graphs import GraphStep
from runtime.srt.execution.weight_upload import WeightUpload
from runtime.srt.loading.model_config import ModelConfig
from runtime.srt.loading.weights import load_weights
from runtime.srt.models.registry import build_model
from runtime.srt.server_args import ServerArgs


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny")
    save_tiny_model(path, "llama-gqa")
    return path


def test_the_pool_is_sized_after_a_step_and_graphs_were_measured(folder: Path) -> None:
    roomy = device_executor(RecordingDevice(free=64 << 20), folder, max_total_tokens=None)
    device = RecordingDevice(free=64 << 20, peak=16 << 20)

    executor = device_executor(device, folder, max_total_tokens=None)

    fewer = roomy.kv_pool.num_bytes - executor.kv_pool.num_bytes
    assert fewer == pytest.approx(16 << 20, rel=0.01), "what the largest step takes is left free"
    assert executor.kv_pool.num_bytes < 0.9 * (48 << 20)


def test_graphs_are_captured_twice_at_most_the_largest_first(folder: Path) -> None:
    device = RecordingDevice()

    executor = device_executor(device, folder)

    assert executor.graphs is not None
    assert executor.graphs.steps == [
        *(GraphStep(size) for size in (1, 2, 4, MAX_ROWS)),
        GraphStep(MAX_ROWS, shares_prefix=True),
    ]
    assert device.captured == 2 + len(executor.graphs.steps), "two to measure, then all"


def test_a_deterministic_server_captures_no_shared_prefixes(folder: Path) -> None:
    executor = device_executor(RecordingDevice(), folder, deterministic=True)

    assert executor.graphs is not None
    assert not any(step.shares_prefix for step in executor.graphs.steps)


def test_without_graphs_nothing_is_captured(folder: Path) -> None:
    device = RecordingDevice()

    executor = device_executor(device, folder, disable_cuda_graph=True)

    assert executor.graphs is None and device.captured == 0


def test_weights_that_cannot_fit_are_refused_before_they_are_read(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"the weights take .* and the device has 0.00 GiB free"):
        device_executor(RecordingDevice(free=1000), folder)


def test_a_largest_step_that_does_not_fit_names_smaller_ones(folder: Path) -> None:
    kernels = TorchKernels()

    def fail(*args: Any, **kwargs: Any) -> None:
        raise OutOfMemory

    kernels.extend_attention = fail  # type: ignore[method-assign]
    with pytest.raises(ConfigError, match="set --chunked-prefill-size to 8 or less, and --max-run"):
        device_executor(RecordingDevice(), folder, kernels)


def test_a_step_that_does_not_fit_names_a_smaller_pool(folder: Path) -> None:
    kernels = TorchKernels()
    executor = device_executor(RecordingDevice(), folder, kernels, disable_cuda_graph=True)
    model = executor.model

    def fail(*args: Any) -> torch.Tensor:
        raise OutOfMemory

    model.forward = fail  # type: ignore[method-assign]
    with pytest.raises(DeviceOutOfMemory, match="out of memory in a step of 3 tokens and 1 rows"):
        executor.execute(batch_of_rows([(3, 3)]), greedy_rows(1), [])


@pytest.mark.parametrize("buffer_bytes", [64, 100, 1 << 20])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_arrive_whole_through_small_buffers(
    folder: Path, buffer_bytes: int, dtype: torch.dtype
) -> None:
    config = ModelConfig.load(folder, {})
    straight, through = build_model(config, dtype), build_model(config, dtype)
    load_weights(folder, straight.parameters())
    device = RecordingDevice()
    upload = WeightUpload(device, device.new_stream("copy"), buffer_bytes)

    num_bytes = load_weights(folder, through.parameters(), upload)

    assert num_bytes == sum(one.nbytes for one in through.parameters().values())
    for name, parameter in straight.parameters().items():
        assert torch.equal(through.parameters()[name], parameter), name


def test_a_gpu_is_asked_for_in_vain_on_a_cpu_build(folder: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("needs a machine without a GPU")
    with pytest.raises(ConfigError, match="--device is cuda, and torch .*--device cpu"):
        selection.load_executor(
            folder, ModelConfig.load(folder, {}), ServerArgs(device="cuda", dtype="float32")
        )


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


def test_a_gpu_has_a_step_in_flight_by_default() -> None:
    assert steps_in_flight(ServerArgs(device="cuda")) == 1
    assert steps_in_flight(ServerArgs()) == 0
    assert steps_in_flight(ServerArgs(device="cuda", overlap_depth=0)) == 0
