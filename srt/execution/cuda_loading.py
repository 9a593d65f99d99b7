"""load_cuda_executor: a model onto a GPU, and the memory that is left to its KV pool.

In this order: weights, streamed from the files; the largest step, run once to see what it takes;
the largest graphs, captured once for the same reason; then the pool gets the rest, and the graphs
are captured over it.
"""

from __future__ import annotations

import logging
import math
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import torch

from ..errors import ConfigError
from ..loading.model_config import ModelConfig
from ..loading.weights import load_weights
from ..memory.kv_pool import KvPool
from ..memory.request_table import DEFAULT_MAX_ROWS, default_num_rows
from ..models.causal_lm import CausalLM
from ..models.parameter_shapes import parameter_shapes
from ..models.registry import build_model
from ..server_args import ServerArgs
from .cuda_executor import CudaExecutor, DeviceStreams
from .cuda_graphs import DecodeGraphs
from .device import CudaDevice, Device, is_cuda_out_of_memory
from .device_memory import (
    DeviceUse,
    gib,
    out_of_memory_at_graphs,
    out_of_memory_at_load,
    out_of_memory_at_pool,
    out_of_memory_at_profile,
    out_of_memory_at_start,
    plan_device_kv_tokens,
    refusing_out_of_memory,
)
from .device_sampler import DeviceSampler
from .device_slot_table import DeviceSlotTable
from .gpu_parts import DeviceParts, gpu_parts, torch_parts
from .profiling import PROFILE_SLOTS, LargestStep
from .weight_upload import WeightUpload

logger = logging.getLogger(__name__)


def load_cuda_executor(
    folder: Path, config: ModelConfig, args: ServerArgs, dtype: str, kv_dtype: str
) -> CudaExecutor:
    """Load the model in folder onto the GPU.

    Raises ConfigError for flags that cannot be honoured and ModelLoadError for weights that do not
    match config.
    """
    try:
        device, parts = _device_and_parts(config, args, kv_dtype)
    except RuntimeError as error:
        if not is_cuda_out_of_memory(error):
            raise
        raise out_of_memory_at_start() from error
    return load_device_executor(device, parts, folder, config, args, dtype, kv_dtype)


def _device_and_parts(
    config: ModelConfig, args: ServerArgs, kv_dtype: str
) -> tuple[Device, DeviceParts]:
    device = _cuda_device()
    if args.deterministic:
        # Sums of partial products in bfloat16 depend on how a product was split.
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
        torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    if args.attention_backend == "torch_reference":
        return device, torch_parts(device, config)
    return device, gpu_parts(device, config, args, kv_dtype)


def load_device_executor(
    device: Device,
    parts: DeviceParts,
    folder: Path,
    config: ModelConfig,
    args: ServerArgs,
    dtype: str,
    kv_dtype: str,
) -> CudaExecutor:
    """load_cuda_executor for any device and its parts."""
    free_at_start = device.free_bytes()
    streams = DeviceStreams(device)
    loading = _Loading(device, streams, parts, config, args, getattr(torch, kv_dtype))
    model, weight_bytes = loading.load_model(folder, dtype, free_at_start)
    step = loading.largest_step()
    with loading.fitting_beside_weights(step):
        attention = parts.make_attention(step.num_rows, streams.copy, streams.forward)
        pool = loading.pool(PROFILE_SLOTS + 1)
        table = loading.table(step.num_rows, step.num_columns)
    sampler = DeviceSampler(config.vocab_size, parts.draw, parts.logit_ops)

    def executor(
        kv_pool: KvPool, table: DeviceSlotTable, graphs: DecodeGraphs | None
    ) -> CudaExecutor:
        return CudaExecutor(
            streams,
            model,
            kv_pool,
            attention,
            table,
            sampler,
            parts.relay_ops,
            weight_bytes,
            graphs,
        )

    def graphs(kv_pool: KvPool, table: DeviceSlotTable, num_rows: int) -> DecodeGraphs | None:
        if args.disable_cuda_graph or not parts.has_graphs:
            return None
        return DecodeGraphs(
            device, streams.forward, model, kv_pool, attention, table.slots, num_rows
        )

    weights = free_at_start - device.free_bytes()
    with loading.fitting_beside_weights(step):
        step_bytes = loading.profile(executor(pool, table, None), step)
    graph_rows = min(args.cuda_graph_max_rows, step.num_rows)
    with refusing_out_of_memory(device, lambda free: out_of_memory_at_graphs(graph_rows, free)):
        graph_bytes = loading.graph_bytes(graphs(pool, table, graph_rows))
    use = DeviceUse(free_at_start, weights, step_bytes, graph_bytes)
    del pool, table
    tokens = plan_device_kv_tokens(args, config, kv_dtype, use)
    num_rows = args.max_running_requests or default_num_rows(tokens)
    num_columns = min(config.served_context(args.context_length), tokens)
    with refusing_out_of_memory(device, lambda free: out_of_memory_at_pool(args, use, tokens)):
        pool = loading.pool(tokens + args.page_size)
        table = loading.table(num_rows, -(-num_columns // args.page_size) * args.page_size)
        captured = graphs(pool, table, min(args.cuda_graph_max_rows, num_rows))
        if captured is not None:
            captured.capture()
        served = executor(pool, table, captured)
    logger.info("device memory: %s, KV pool %s", use.parts(), gib(pool.num_bytes))
    return served


def _cuda_device() -> Device:
    if torch.version.cuda is None:
        raise ConfigError(
            f"--device is cuda, and torch {torch.__version__} is built without CUDA; install a "
            "CUDA build of it (pip install torch from the index for your CUDA version), or set "
            "--device cpu"
        )
    if not torch.cuda.is_available():
        raise ConfigError(
            "--device is cuda, and torch finds no NVIDIA GPU on this machine; check nvidia-smi and "
            "CUDA_VISIBLE_DEVICES, or set --device cpu"
        )
    return CudaDevice()


@dataclass(frozen=True, slots=True)
class _Loading:
    device: Device
    streams: DeviceStreams
    parts: DeviceParts
    config: ModelConfig
    args: ServerArgs
    kv_dtype: torch.dtype

    def load_model(self, folder: Path, dtype: str, free_bytes: int) -> tuple[CausalLM, int]:
        """The model on the device, and the bytes of its weights."""
        torch_dtype: torch.dtype = getattr(torch, dtype)
        shapes = parameter_shapes(self.config).values()
        needed = sum(math.prod(shape) for shape in shapes) * torch_dtype.itemsize
        if needed > free_bytes:
            raise out_of_memory_at_load(needed, free_bytes)
        with refusing_out_of_memory(self.device, lambda free: out_of_memory_at_load(needed, free)):
            with self.device.torch_device:
                model = build_model(self.config, torch_dtype, self.parts.ops)
            upload = WeightUpload(self.device, self.streams.copy)
            return model, load_weights(folder, model.parameters(), upload)

    def largest_step(self) -> LargestStep:
        args = self.args
        max_rows = args.max_running_requests or DEFAULT_MAX_ROWS
        if args.max_total_tokens is not None and args.max_running_requests is None:
            max_rows = default_num_rows(args.max_total_tokens)
        context = self.config.served_context(args.context_length)
        return LargestStep.of(args.chunked_prefill_size, max_rows, context)

    def pool(self, num_slots: int) -> KvPool:
        return KvPool(self.config, num_slots, self.kv_dtype, self.device.torch_device)

    def table(self, num_rows: int, num_columns: int) -> DeviceSlotTable:
        """With a dummy row 0 beside num_rows."""
        return DeviceSlotTable(num_rows + 1, num_columns, self.device.torch_device)

    def fitting_beside_weights(self, step: LargestStep) -> AbstractContextManager[None]:
        """Refuses a largest step, and what it needs, if the device has no room for it."""
        return refusing_out_of_memory(
            self.device,
            lambda free: out_of_memory_at_profile(
                step.num_tokens, step.num_rows, self.args.page_size, free
            ),
        )

    def profile(self, executor: CudaExecutor, step: LargestStep) -> int:
        """Bytes that the largest step takes at its worst moment."""
        return self.device.peak_bytes(lambda: _run(executor, step))

    def graph_bytes(self, graphs: DecodeGraphs | None) -> int:
        """What all graphs will take: the largest needs most, the others little beside it."""
        if graphs is None:
            return 0
        free = [self.device.free_bytes()]
        for step in graphs.steps[-1:-3:-1]:
            graphs.capture([step])
            free.append(self.device.free_bytes())
        taken = [max(0, before - after) for before, after in zip(free, free[1:], strict=False)]
        return taken[0] + (taken[1] * (len(graphs.steps) - 1) if len(taken) > 1 else 0)


def _run(executor: CudaExecutor, step: LargestStep) -> None:
    executor.execute(step.batch(), step.sample_rows(), step.prompt_logprob_rows())
