"""plan_kv_tokens: how many tokens the KV pool holds, from flags, weights and free memory."""

from __future__ import annotations

import torch

from ..errors import ConfigError
from ..loading.model_config import ModelConfig
from ..memory.kv_pool import bytes_per_token
from ..server_args import ServerArgs
from .host_limits import free_memory_bytes

DEFAULT_CPU_FRACTION = 0.5
DEFAULT_MAX_TOKENS = 65536
DEFAULT_MAX_CONTEXTS = 8
# Fewer tokens than this serve nobody: a prompt, its answer and the slot being written.
MIN_POOL_TOKENS = 16
# Share of free memory that an explicit pool and the weights may take; the rest is for activations,
# logits and the other processes.
MAX_FRACTION = 0.95


def plan_kv_tokens(
    args: ServerArgs, config: ModelConfig, dtype: torch.dtype, weight_bytes: int
) -> int:
    """Tokens of the pool, a multiple of page_size, to be planned before weights are read.

    Raises ConfigError naming the flag, the figures and a value that would work.
    """
    context = config.served_context(args.context_length)
    free = free_memory_bytes()
    token_bytes = bytes_per_token(config, dtype)
    fraction = args.mem_fraction_static
    if args.max_total_tokens is not None:
        room = int(free * (fraction or MAX_FRACTION)) - weight_bytes
        return _explicit_tokens(args.max_total_tokens, args.page_size, room, token_bytes, free)
    room = int(free * (fraction or DEFAULT_CPU_FRACTION)) - weight_bytes
    tokens = room // token_bytes
    if fraction is None:
        # One context always fits the cap, or a request the model could take would be refused.
        cap = max(context, min(DEFAULT_MAX_TOKENS, DEFAULT_MAX_CONTEXTS * context))
        tokens = min(tokens, _rounded_up(cap, args.page_size))
    tokens -= tokens % args.page_size
    if tokens < _least_tokens(args.page_size):
        raise _too_little(args, fraction or DEFAULT_CPU_FRACTION, free, weight_bytes, token_bytes)
    return tokens


def _explicit_tokens(wanted: int, page_size: int, room: int, token_bytes: int, free: int) -> int:
    least = _least_tokens(page_size)
    tokens = wanted - wanted % page_size
    if tokens < least:
        raise ConfigError(
            f"--max-total-tokens is {wanted}; with --page-size {page_size} it must be at least "
            f"{least}"
        )
    if tokens * token_bytes > room:
        possible = max(0, room // token_bytes)
        possible -= possible % page_size
        remedy = f"{possible} would fit" if possible >= least else "not even the weights fit"
        raise ConfigError(
            f"--max-total-tokens is {wanted}, which takes {_gib(tokens * token_bytes)}; beside the "
            f"weights there is room for {_gib(max(0, room))} of {_gib(free)} free memory: {remedy}"
        )
    return tokens


def _too_little(
    args: ServerArgs, fraction: float, free: int, weight_bytes: int, token_bytes: int
) -> ConfigError:
    least_bytes = weight_bytes + _least_tokens(args.page_size) * token_bytes
    needed = least_bytes / max(free, 1)
    if needed < MAX_FRACTION:
        remedy = f"set it to at least {min(MAX_FRACTION, needed + 0.01):.2f}"
    else:
        remedy = f"free some memory: at least {_gib(least_bytes)} are needed"
    return ConfigError(
        f"--mem-fraction-static is {fraction} of {_gib(free)} free memory; the weights take "
        f"{_gib(weight_bytes)}, which leaves no room for a KV pool: {remedy}"
    )


def _least_tokens(page_size: int) -> int:
    return _rounded_up(MIN_POOL_TOKENS, page_size)


def _rounded_up(tokens: int, page_size: int) -> int:
    return -(-tokens // page_size) * page_size


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / (1 << 30):.2f} GiB"
