"""From a folder to an executor on a device: order, sizes, and errors with a flag that helps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.device_rig import MAX_ROWS, device_executor
from support.recording_device import OutOfMemory, RecordingDevice
from support.steps import batch_of_rows, greedy_rows
from support.tiny_models import save_tiny_model
from support.torch_kernels import TorchKernels

from runtime.srt.device_flags import steps_in_flight
from runtime.srt.errors import ConfigError, DeviceOutOfMemory
from runtime.srt.execution import cuda_loading, selection
from runtime.srt.execution.cuda_graphs import GraphStep
from runtime.srt.execution.device import is_cuda_out_of_memory
from runtime.srt.execution.weight_upload import WeightUpload
from runtime.srt.loading.model_config import ModelConfig
from runtime.srt.loading.weights import load_weights
from runtime.srt.memory.kv_pool import KvPool
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


def _attention_has_no_room(kernels: TorchKernels, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "kernels", _fail)


def _the_table_has_no_room(kernels: TorchKernels, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_loading, "DeviceSlotTable", _fail)


def _graphs_have_no_room(kernels: TorchKernels, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RecordingDevice, "capture", _fail)


def _the_pool_has_no_room(kernels: TorchKernels, monkeypatch: pytest.MonkeyPatch) -> None:
    def pool(config: ModelConfig, num_slots: int, *args: Any) -> KvPool:
        return KvPool(config, num_slots, *args) if num_slots < 20 else _fail()

    monkeypatch.setattr(cuda_loading, "KvPool", pool)


def _graphs_over_the_pool_have_no_room(
    kernels: TorchKernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    capture = RecordingDevice.capture

    def limited(device: RecordingDevice, *args: Any) -> Any:
        return capture(device, *args) if device.captured < 4 else _fail()

    monkeypatch.setattr(RecordingDevice, "capture", limited)


def _fail(*args: Any, **kwargs: Any) -> Any:
    raise OutOfMemory


@pytest.mark.parametrize(
    ("break_it", "args", "expected"),
    [
        (_attention_has_no_room, {}, "set --chunked-prefill-size to 8 or less"),
        (_the_table_has_no_room, {}, "set --chunked-prefill-size to 8 or less"),
        (_graphs_have_no_room, {}, "--cuda-graph-max-rows to 3 or less, or set --disable-cuda-gra"),
        (_graphs_have_no_room, {"cuda_graph_max_rows": 1}, "is left: set --disable-cuda-graph"),
        (_the_pool_has_no_room, {}, "pool of 400 tokens .* set --max-total-tokens to 360 or less"),
        (
            _the_pool_has_no_room,
            {"max_total_tokens": None, "mem_fraction_static": 0.8},
            "set --mem-fraction-static to 0.75 or less",
        ),
        (_the_pool_has_no_room, {"max_total_tokens": None}, "--mem-fraction-static to 0.85 or l"),
        (_graphs_over_the_pool_have_no_room, {}, "set --max-total-tokens to 360 or less"),
    ],
)
def test_whatever_finds_no_memory_at_the_start_names_a_flag_that_works(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    break_it: Callable[[TorchKernels, pytest.MonkeyPatch], None],
    args: dict[str, Any],
    expected: str,
) -> None:
    kernels = TorchKernels()
    break_it(kernels, monkeypatch)

    with pytest.raises(ConfigError, match=expected):
        device_executor(RecordingDevice(free=64 << 20), folder, kernels, **args)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), True),
        (RuntimeError("Triton Error [CUDA]: out of memory"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"), True),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), False),
        (RuntimeError("out of resource: shared memory, Required: 300000"), False),
        (ValueError("out of memory"), False),
    ],
)
def test_the_libraries_of_a_gpu_say_in_several_ways_that_memory_is_out(
    error: Exception, expected: bool
) -> None:
    assert is_cuda_out_of_memory(error) == expected


def test_memory_that_is_out_in_a_capture_is_seen_behind_the_error_of_its_end() -> None:
    try:
        try:
            raise torch.OutOfMemoryError("CUDA out of memory")
        finally:
            raise RuntimeError("the capture was invalidated")
    except RuntimeError as error:
        assert is_cuda_out_of_memory(error)


def test_a_device_that_is_full_before_anything_is_loaded_is_told_as_such(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full() -> Any:
        raise RuntimeError("CUDA error: out of memory")

    monkeypatch.setattr(cuda_loading, "_cuda_device", full)
    args = ServerArgs(device="cuda", dtype="float32")
    with pytest.raises(ConfigError, match="no memory to begin with: end other programs"):
        cuda_loading.load_cuda_executor(
            folder, ModelConfig.load(folder, {}), args, "float32", "float32"
        )


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


def test_a_gpu_has_a_step_in_flight_by_default() -> None:
    assert steps_in_flight(ServerArgs(device="cuda")) == 1
    assert steps_in_flight(ServerArgs()) == 0
    assert steps_in_flight(ServerArgs(device="cuda", overlap_depth=0)) == 0
