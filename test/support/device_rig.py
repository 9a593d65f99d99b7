"""A tiny model on a device that is no GPU, with a scheduler; and the torch reference beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from support.scheduler_rig import SchedulerRig
from support.torch_kernels import TorchKernels

from runtime.srt.attention.triton_backend import TritonAttention
from runtime.srt.execution.cuda_executor import CudaExecutor
from runtime.srt.execution.cuda_loading import load_device_executor
from runtime.srt.execution.device import Device, Stream
from runtime.srt.execution.device_draw import reference_draw
from runtime.srt.execution.gpu_parts import DeviceParts
from runtime.srt.execution.logit_lists import TORCH_LOGIT_OPS
from runtime.srt.execution.selection import load_executor
from runtime.srt.execution.staging import ForwardUploads
from runtime.srt.execution.token_relay import TorchRelayOps
from runtime.srt.layers.layer_ops import TorchLayerOps
from runtime.srt.loading.model_config import ModelConfig
from runtime.srt.memory.kv_layout import bytes_per_token
from runtime.srt.server_args import ServerArgs

MAX_ROWS = 6
CONTEXT = 96
TOKENS = 400


def device_args(**args: Any) -> ServerArgs:
    """Settings for a small pool, with graphs."""
    return ServerArgs(
        **{
            "max_total_tokens": TOKENS,
            "max_running_requests": MAX_ROWS,
            "context_length": CONTEXT,
            "chunked_prefill_size": 16,
            "cuda_graph_max_rows": MAX_ROWS,
            **args,
        }
    )


def parts_in_torch(
    device: Device, config: ModelConfig, args: ServerArgs, kernels: TorchKernels
) -> DeviceParts:
    """What gpu_parts chooses on a GPU, with torch in place of the kernels."""

    def make_attention(max_rows: int, copy: Stream, forward: Stream) -> TritonAttention:
        return TritonAttention(
            config,
            kernels.kernels(),
            ForwardUploads(device, copy, forward),
            device.torch_device,
            num_multiprocessors=device.num_multiprocessors,
            max_rows=max_rows,
            max_context=config.served_context(args.context_length),
            kv_bytes=bytes_per_token(config, config.dtype),
            is_deterministic=args.deterministic,
        )

    return DeviceParts(
        TorchLayerOps(config.rope, config.head_dim, device.torch_device),
        make_attention,
        reference_draw,
        TORCH_LOGIT_OPS,
        TorchRelayOps(),
        has_graphs=True,
    )


def device_executor(
    device: Device, folder: Path, kernels: TorchKernels | None = None, **args: Any
) -> CudaExecutor:
    """The model in folder on device."""
    settings, config = device_args(**args), ModelConfig.load(folder, {})
    parts = parts_in_torch(device, config, settings, kernels or TorchKernels())
    return load_device_executor(device, parts, folder, config, settings, config.dtype, config.dtype)


def reference_executor(folder: Path) -> Any:
    """The torch reference for the same model."""
    torch.set_num_threads(1)
    args = device_args(attention_backend="torch_reference")
    return load_executor(folder, ModelConfig.load(folder, {}), args)


def serving(executor: Any, **config: Any) -> SchedulerRig:
    """A scheduler over executor."""
    return SchedulerRig(
        total_tokens=TOKENS,
        vocab_size=128,
        make_executor=lambda num_slots, vocab_size: executor,
        **{
            "context_length": CONTEXT,
            "max_running_requests": MAX_ROWS,
            "chunk_tokens": 16,
            **config,
        },
    )
