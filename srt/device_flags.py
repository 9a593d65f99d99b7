"""Flags that depend on each other through who computes the model: device, backend and types.

Part of ServerArgs' checks; imports nothing heavy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .errors import ConfigError

if TYPE_CHECKING:
    from .server_args import ServerArgs

_GPU_BACKENDS = ("triton", "flashinfer")


def check_device_flags(args: ServerArgs) -> None:
    """Raise ConfigError for flags of which one excludes the other."""
    if args.quantization != "none":
        _check_quantized(args)
    if args.device == "cuda":
        _check_cuda(args)
        return
    if args.attention_backend in _GPU_BACKENDS:
        raise ConfigError(
            f"--attention-backend is {args.attention_backend}, which computes on a GPU, and "
            f"--device is {args.device}; set --device cuda, or leave the backend at its default"
        )
    if args.kv_cache_dtype == "fp8_e4m3":
        raise ConfigError(
            f"--kv-cache-dtype is fp8_e4m3, which needs a GPU, and --device is {args.device}; set "
            "--device cuda, or --kv-cache-dtype int8"
        )


def steps_in_flight(args: ServerArgs) -> int:
    """--overlap-depth, or its default for the device."""
    if args.overlap_depth is None:
        return 1 if args.device == "cuda" else 0
    return args.overlap_depth


def _check_quantized(args: ServerArgs) -> None:
    chosen = f"--quantization is {args.quantization}"
    if args.dtype not in ("auto", "bfloat16"):
        raise ConfigError(
            f"{chosen}, which computes in bfloat16, and --dtype is {args.dtype}; leave one of them "
            "at its default"
        )
    if args.attention_backend not in ("auto", "cpu_native"):
        raise ConfigError(
            f"{chosen}, which only cpu_native computes, and --attention-backend is "
            f"{args.attention_backend}; leave one of them at its default"
        )
    if args.device == "cuda":
        raise ConfigError(
            f"{chosen}, which only cpu_native computes, and --device is cuda; leave one of them at "
            "its default"
        )


def _check_cuda(args: ServerArgs) -> None:
    if args.attention_backend == "cpu_native":
        raise ConfigError(
            "--attention-backend is cpu_native, and --device is cuda; set the backend to triton, "
            "flashinfer or torch_reference, or leave it at its default"
        )
    if args.kv_cache_dtype == "int8":
        raise ConfigError(
            "--kv-cache-dtype is int8, which only cpu_native keeps, and --device is cuda; set it "
            "to fp8_e4m3"
        )
    if args.kv_cache_dtype == "fp8_e4m3" and args.attention_backend == "torch_reference":
        raise ConfigError(
            "--kv-cache-dtype is fp8_e4m3, and --attention-backend is torch_reference, which keeps "
            "KV in what it computes in; leave one of them at its default"
        )
