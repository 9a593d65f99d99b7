"""load_executor: chooses who computes, by device, model and flags, and loads the model for it.

Imports torch only where the torch reference serves: that alone takes more than a second.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from runtime.kernels.cpu.build import BuildFailed, NoCompiler

from ..errors import ConfigError
from ..loading.model_config import ModelConfig
from ..memory.host_kv_pool import HostKvPool
from ..server_args import ServerArgs
from .forward_batch import Executor
from .host_limits import usable_cores
from .kv_budget import plan_kv_tokens
from .native_executor import NativeExecutor
from .native_model import load_native_model, native_serves
from .weight_forms import WeightForm, describe, plan_weight_forms, total_bytes

logger = logging.getLogger(__name__)


class SizedPool(Protocol):
    """What is to be known of a KV pool."""

    num_slots: int

    @property
    def num_bytes(self) -> int: ...


class LoadedExecutor(Executor, Protocol):
    """An Executor with the facts that a server reports; dtype is bfloat16, float16 or float32."""

    weight_bytes: int
    weight_form: str
    dtype: str
    device: str
    backend_name: str

    @property
    def kv_pool(self) -> SizedPool: ...


def load_executor(folder: Path, config: ModelConfig, args: ServerArgs) -> LoadedExecutor:
    """Load the model in folder and allot its KV pool: plan_kv_tokens plus one dummy page of slots.

    Raises ConfigError for flags that cannot be honoured and ModelLoadError for weights that do not
    match config.
    """
    dtype = _compute_dtype(config, args)
    started = time.monotonic()
    if args.device == "cuda":
        from .cuda_loading import load_cuda_executor

        on_gpu = load_cuda_executor(folder, config, args, dtype, _gpu_kv_dtype(args, dtype))
        _log_loaded(on_gpu, config, args, _gpu_kv_dtype(args, dtype), started)
        return on_gpu
    kv_dtype = _kv_dtype(args, dtype)
    forms = plan_weight_forms(folder, config, dtype, args.quantization)
    # Weights are not read yet, so the plan still sees the memory they will take.
    num_tokens = plan_kv_tokens(args, config, kv_dtype, total_bytes(forms))
    num_slots = num_tokens + args.page_size
    executor = _native(folder, config, args, dtype, kv_dtype, num_slots, forms)
    if executor is None:
        from .torch_executor import load_torch_executor

        executor = load_torch_executor(folder, config, args, dtype, num_slots)
    _log_loaded(executor, config, args, kv_dtype, started)
    return executor


def _log_loaded(
    executor: LoadedExecutor,
    config: ModelConfig,
    args: ServerArgs,
    kv_dtype: str,
    started: float,
) -> None:
    logger.info(
        "loaded %s (%s, %s, %.0f MiB of %s weights) in %.1f s; KV pool of %d tokens, %.0f MiB "
        "of %s",
        config.architecture,
        executor.dtype,
        executor.backend_name,
        executor.weight_bytes / 2**20,
        executor.weight_form,
        time.monotonic() - started,
        executor.kv_pool.num_slots - args.page_size,
        executor.kv_pool.num_bytes / 2**20,
        kv_dtype,
    )


def _compute_dtype(config: ModelConfig, args: ServerArgs) -> str:
    if args.quantization != "none":
        return "bfloat16"
    return config.dtype if args.dtype == "auto" else args.dtype


def _gpu_kv_dtype(args: ServerArgs, dtype: str) -> str:
    """As torch names it; see check_device_flags for what is refused before."""
    if args.kv_cache_dtype == "fp8_e4m3":
        return "float8_e4m3fn"
    if args.kv_cache_dtype not in ("auto", dtype):
        raise ConfigError(
            f"--kv-cache-dtype is {args.kv_cache_dtype}, and the GPU computes in {dtype}; leave it "
            f"at its default, or set it to {dtype} or fp8_e4m3"
        )
    return dtype


def _kv_dtype(args: ServerArgs, dtype: str) -> str:
    if args.kv_cache_dtype in ("auto", dtype):
        return dtype
    if args.attention_backend == "torch_reference":
        raise ConfigError(
            f"--kv-cache-dtype is {args.kv_cache_dtype}, and --attention-backend is "
            f"torch_reference, which keeps KV in what it computes in, here {dtype}; leave one of "
            "them at its default"
        )
    return args.kv_cache_dtype


def _native(
    folder: Path,
    config: ModelConfig,
    args: ServerArgs,
    dtype: str,
    kv_dtype: str,
    num_slots: int,
    forms: Mapping[str, WeightForm],
) -> LoadedExecutor | None:
    """The C++ engine, or None where the torch reference serves instead."""
    if args.attention_backend == "torch_reference":
        return None
    forced = _flag_that_forces_it(args, dtype)
    if not native_serves(config, dtype):
        reason = f"cpu_native does not compute {config.architecture} in {dtype} with these options"
        _warn_or_refuse(forced, reason)
        return None
    max_positions = config.served_context(args.context_length)
    try:
        model = load_native_model(
            folder, config, dtype, kv_dtype, args.threads or usable_cores(), max_positions, forms
        )
    except (NoCompiler, BuildFailed) as error:
        _warn_or_refuse(forced, str(error))
        return None
    return NativeExecutor(model, HostKvPool(config, num_slots, kv_dtype), describe(forms), dtype)


def _flag_that_forces_it(args: ServerArgs, dtype: str) -> str | None:
    if args.attention_backend == "cpu_native":
        return "--attention-backend is cpu_native"
    if args.quantization != "none":
        return f"--quantization is {args.quantization}, which only cpu_native computes"
    if args.kv_cache_dtype not in ("auto", dtype):
        return (
            f"--kv-cache-dtype is {args.kv_cache_dtype}, which only cpu_native keeps beside {dtype}"
        )
    return None


def _warn_or_refuse(forced: str | None, reason: str) -> None:
    if forced is not None:
        raise ConfigError(f"{forced}: {reason}")
    logger.warning("%s; the slower torch_reference serves", reason)
