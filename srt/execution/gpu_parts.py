"""What computes on a GPU beside the matrix products: attention, layer operations, draws, relay.

Chosen once, from the flags and what is installed. On another device the same parts exist in plain
torch, which is how the execution code is tested without a GPU.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from runtime.kernels.kernel_modules import KernelsMissing, kernel_module

from ..attention.backend import AttentionBackend
from ..attention.flashinfer_backend import (
    FlashInferAttention,
    flashinfer_module,
    unsupported_reason,
)
from ..attention.flashinfer_trial import try_out
from ..attention.torch_reference import TorchReferenceAttention
from ..attention.triton_backend import TritonAttention
from ..attention.triton_kernels import load_triton_kernels
from ..errors import ConfigError
from ..layers.layer_ops import LayerOps, TorchLayerOps
from ..layers.triton_layer_ops import TritonLayerOps
from ..loading.model_config import ModelConfig
from ..memory.kv_layout import bytes_per_token
from ..server_args import ServerArgs
from .device import Device, Stream
from .device_draw import Draw, reference_draw
from .logit_lists import TORCH_LOGIT_OPS, LogitOps
from .staging import ForwardUploads
from .token_relay import RelayOps, TorchRelayOps
from .triton_draw import load_triton_draw

logger = logging.getLogger(__name__)

_TRITON_INSTEAD = "--attention-backend is flashinfer, but %s; triton serves instead"


@dataclass(frozen=True, slots=True)
class DeviceParts:
    """make_attention takes the most rows of a step, and its copy and forward streams."""

    ops: LayerOps
    make_attention: Callable[[int, Stream, Stream], AttentionBackend]
    draw: Draw
    logit_ops: LogitOps
    relay_ops: RelayOps
    has_graphs: bool  # whether the attention can be captured


def gpu_parts(device: Device, config: ModelConfig, args: ServerArgs, kv_dtype: str) -> DeviceParts:
    """The Triton kernels, with FlashInfer's attention where that is asked for and served.

    Raises ConfigError where triton or one of its kernels is missing.
    """
    place = device.torch_device
    context = config.served_context(args.context_length)
    try:
        ops = TritonLayerOps(config.rope, config.head_dim, context, place)
        kernels = load_triton_kernels()
        logit_ops = LogitOps(
            kernel_module("grammar_mask").apply_bitmask, kernel_module("logit_edits").apply_edits
        )
        relay: Any = kernel_module("token_relay")
        draw = load_triton_draw()
    except KernelsMissing as error:
        raise ConfigError(
            f"--device is cuda, and {error}; install the package: pip install 'triton>=3.6', or "
            "set --attention-backend torch_reference to serve without it, slowly"
        ) from error
    flashinfer = _flashinfer(config, args, kv_dtype)
    kv_bytes = bytes_per_token(config, kv_dtype)

    def flashinfer_attention(upload: ForwardUploads, forward: Stream) -> FlashInferAttention:
        return FlashInferAttention(
            config,
            flashinfer,
            kernels.store_kv,
            upload,
            forward.record,
            place,
            getattr(torch, kv_dtype),
            num_multiprocessors=device.num_multiprocessors,
            max_context=context,
            kv_bytes=kv_bytes,
            is_deterministic=args.deterministic,
        )

    def make_attention(max_rows: int, copy: Stream, forward: Stream) -> AttentionBackend:
        upload = ForwardUploads(device, copy, forward)
        if flashinfer is not None:
            make = partial(flashinfer_attention, upload, forward)
            attention = tried_flashinfer(make, device, forward, config, kv_dtype)
            if attention is not None:
                return attention
        return TritonAttention(
            config,
            kernels,
            upload,
            place,
            num_multiprocessors=device.num_multiprocessors,
            max_rows=max_rows,
            max_context=context,
            kv_bytes=kv_bytes,
            is_deterministic=args.deterministic,
        )

    return DeviceParts(ops, make_attention, draw, logit_ops, relay, has_graphs=True)


def tried_flashinfer(
    make: Callable[[], FlashInferAttention],
    device: Device,
    forward: Stream,
    config: ModelConfig,
    kv_dtype: str,
) -> FlashInferAttention | None:
    """What make returns, after a small step; None, with a line in the log, where that fails.

    Raises ConfigError where it finds no memory, or leaves the device unusable.
    """
    try:
        with device.running_on(forward):
            attention = make()
            try_out(attention, config, getattr(torch, kv_dtype), device.torch_device)
        device.synchronize()
        return attention
    except Exception as error:  # the package has no type for what its compiler says
        said = f"{type(error).__name__}: {_first_line(error)}"
        if device.is_out_of_memory(error):
            raise ConfigError(
                f"--attention-backend is flashinfer, for which there is no memory beside the "
                f"weights ({said}); set --attention-backend triton, which needs less"
            ) from error
        try:
            device.synchronize()
        except RuntimeError:  # nothing can be run any more
            raise ConfigError(
                f"--attention-backend is flashinfer, which failed and left the device unusable "
                f"({said}); set --attention-backend triton"
            ) from error
        logger.warning(
            _TRITON_INSTEAD,
            f"a small step with it failed ({said}); kernels that it has to compile need nvcc",
        )
        return None


def torch_parts(device: Device, config: ModelConfig) -> DeviceParts:
    """Plain torch for everything: the meaning of the kernels, on any device."""
    return DeviceParts(
        ops=TorchLayerOps(config.rope, config.head_dim, device.torch_device),
        make_attention=lambda max_rows, copy, forward: TorchReferenceAttention(),
        draw=reference_draw,
        logit_ops=TORCH_LOGIT_OPS,
        relay_ops=TorchRelayOps(),
        has_graphs=False,
    )


def _flashinfer(config: ModelConfig, args: ServerArgs, kv_dtype: str) -> Any:
    """The package if it is to be used; else None, with a line in the log if it was asked for."""
    if args.attention_backend != "flashinfer":
        return None
    reason = unsupported_reason(config, getattr(torch, kv_dtype))
    if reason is None:
        try:
            return flashinfer_module()
        except Exception as error:  # it makes folders and compares versions when it is imported
            reason = f"it cannot be imported ({type(error).__name__}: {_first_line(error)})"
    logger.warning(_TRITON_INSTEAD, reason)
    return None


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else "no text"
