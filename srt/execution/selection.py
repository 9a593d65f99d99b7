"""load_executor: chooses who computes, by device, model and flags, and loads the model for it."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import torch

from runtime.kernels.cpu.build import BuildFailed, NoCompiler

from ..attention.torch_reference import TorchReferenceAttention
from ..errors import ConfigError
from ..loading.model_config import ModelConfig
from ..loading.weights import load_weights
from ..memory.kv_pool import KvPool
from ..models.registry import build_model
from ..server_args import ServerArgs
from .forward_batch import Executor
from .host_limits import usable_cores
from .kv_budget import plan_kv_tokens
from .native_executor import NativeExecutor
from .native_model import load_native_model, native_serves
from .torch_executor import TorchExecutor
from .weight_forms import WeightForm, describe, plan_weight_forms, total_bytes

logger = logging.getLogger(__name__)


class LoadedExecutor(Executor, Protocol):
    """An Executor with the facts that a server reports."""

    kv_pool: KvPool
    weight_bytes: int
    weight_form: str
    dtype: torch.dtype
    backend_name: str


def load_executor(folder: Path, config: ModelConfig, args: ServerArgs) -> LoadedExecutor:
    """Load the model in folder and allot its KV pool: plan_kv_tokens plus one dummy page of slots.

    Sets torch's thread count for this process. Raises ConfigError for flags that cannot be honoured
    and ModelLoadError for weights that do not match config.
    """
    device = torch.device("cpu" if args.device == "auto" else args.device)
    dtype = _compute_dtype(config, args)
    started = time.monotonic()
    forms = plan_weight_forms(folder, config, dtype, args.quantization)
    # Weights are not read yet, so the plan still sees the memory they will take.
    num_tokens = plan_kv_tokens(args, config, dtype, total_bytes(forms))
    kv_pool = KvPool(config, num_tokens + args.page_size, dtype, device)
    executor = _native(folder, config, args, dtype, kv_pool, forms)
    if executor is None:
        executor = _torch(folder, config, args, dtype, kv_pool)
    logger.info(
        "loaded %s (%s, %s, %.0f MB of %s weights) in %.1f s; KV pool of %d tokens, %.0f MB",
        config.architecture,
        str(dtype).removeprefix("torch."),
        executor.backend_name,
        executor.weight_bytes / 1e6,
        executor.weight_form,
        time.monotonic() - started,
        num_tokens,
        kv_pool.num_bytes / 1e6,
    )
    return executor


def torch_dtype(name: str) -> torch.dtype:
    """bfloat16, float16 or float32 as a torch type."""
    return {
        "bfloat16": torch.bfloat16,
        "float16": torch.float16,
        "float32": torch.float32,
    }[name]


def _compute_dtype(config: ModelConfig, args: ServerArgs) -> torch.dtype:
    if args.quantization != "none":
        return torch.bfloat16
    return torch_dtype(config.dtype if args.dtype == "auto" else args.dtype)


def _native(
    folder: Path,
    config: ModelConfig,
    args: ServerArgs,
    dtype: torch.dtype,
    kv_pool: KvPool,
    forms: Mapping[str, WeightForm],
) -> LoadedExecutor | None:
    """The C++ engine, or None where the torch reference serves instead."""
    if args.attention_backend == "torch_reference":
        return None
    forced = _flag_that_forces_it(args)
    if not native_serves(config, dtype):
        reason = f"cpu_native does not compute {config.architecture} in {dtype} with these options"
        _warn_or_refuse(forced, reason)
        return None
    max_positions = config.served_context(args.context_length)
    try:
        model = load_native_model(
            folder, config, dtype, args.threads or usable_cores(), max_positions, forms
        )
    except (NoCompiler, BuildFailed) as error:
        _warn_or_refuse(forced, str(error))
        return None
    # Only sampling is left to torch: a second team of threads would compete with the engine's.
    torch.set_num_threads(1)
    return NativeExecutor(model, kv_pool, describe(forms))


def _flag_that_forces_it(args: ServerArgs) -> str | None:
    if args.attention_backend == "cpu_native":
        return "--attention-backend is cpu_native"
    if args.quantization != "none":
        return f"--quantization is {args.quantization}, which only cpu_native computes"
    return None


def _warn_or_refuse(forced: str | None, reason: str) -> None:
    if forced is not None:
        raise ConfigError(f"{forced}: {reason}")
    logger.warning("%s; the slower torch_reference serves", reason)


def _torch(
    folder: Path, config: ModelConfig, args: ServerArgs, dtype: torch.dtype, kv_pool: KvPool
) -> LoadedExecutor:
    torch.set_num_threads(args.threads or usable_cores())
    model = build_model(config, dtype)
    weight_bytes = load_weights(folder, model.parameters())
    return TorchExecutor(model, kv_pool, TorchReferenceAttention(), weight_bytes)
