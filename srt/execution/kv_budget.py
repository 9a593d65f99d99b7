"""plan_kv_tokens: how many tokens the KV pool holds, from flags, weights and free memory."""

from __future__ import annotations

from ..errors import ConfigError
from ..loading.model_config import ModelConfig
from ..memory.kv_layout import bytes_per_token
from ..memory.request_table import default_num_rows, table_bytes
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


def plan_kv_tokens(args: ServerArgs, config: ModelConfig, kv_dtype: str, weight_bytes: int) -> int:
    """Tokens of the pool, a multiple of page_size, to be planned before weights are read.

    Raises ConfigError naming the flag, the figures and a value that would work.
    """
    context = config.served_context(args.context_length)
    free = free_memory_bytes()
    token_bytes = bytes_per_token(config, kv_dtype)
    fraction = args.mem_fraction_static
    # One context always fits the cap, or a request the model could take would be refused.
    cap = max(context, min(DEFAULT_MAX_TOKENS, DEFAULT_MAX_CONTEXTS * context))
    taken = weight_bytes
    if (room := int(free * MAX_FRACTION) - weight_bytes) > 0:
        most_tokens = args.max_total_tokens or min(cap, room // token_bytes + 1)
        taken += _table_bytes(args, config, context, most_tokens, room)
    if args.max_total_tokens is not None:
        room = int(free * (fraction or MAX_FRACTION)) - taken
        return _explicit_tokens(args.max_total_tokens, args.page_size, room, token_bytes, free)
    room = int(free * (fraction or DEFAULT_CPU_FRACTION)) - taken
    tokens = room // token_bytes
    if fraction is None:
        tokens = min(tokens, _rounded_up(cap, args.page_size))
    tokens -= tokens % args.page_size
    if tokens < _least_tokens(args.page_size):
        if room >= MIN_POOL_TOKENS * token_bytes:
            raise ConfigError(
                f"--page-size is {args.page_size}, which takes "
                f"{_gib(args.page_size * token_bytes)} a page; beside the weights there is room "
                f"for {_gib(room)}: lower it"
            )
        raise _too_little(args, fraction or DEFAULT_CPU_FRACTION, free, taken, token_bytes)
    return tokens


def _table_bytes(
    args: ServerArgs, config: ModelConfig, context: int, most_tokens: int, room: int
) -> int:
    """Bytes of the tables beside the pool: slots of the running requests, and rotary angles.

    most_tokens: of the pool. Raises ConfigError if room does not hold them.
    """
    num_rows = args.max_running_requests or default_num_rows(most_tokens)
    num_columns = min(context, most_tokens)
    angles = context * config.head_dim * 4  # half of them cosines; f32
    taken = table_bytes(num_rows, num_columns) + angles
    if taken <= room:
        return taken
    most_rows = (room - angles) // table_bytes(0, num_columns) - 1
    if args.max_running_requests is not None and most_rows > 0:
        raise ConfigError(
            f"--max-running-requests is {num_rows}, which takes {_gib(taken)} for tables of "
            f"{num_columns} tokens each; beside the weights there is room for {_gib(room)}: at "
            f"most {most_rows} would fit"
        )
    raise ConfigError(
        f"a context of {context} tokens takes {_gib(taken)} for the tables of {num_rows} running "
        f"requests; beside the weights there is room for {_gib(room)}: lower --context-length"
    )


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
    args: ServerArgs, fraction: float, free: int, taken_bytes: int, token_bytes: int
) -> ConfigError:
    least_bytes = taken_bytes + _least_tokens(args.page_size) * token_bytes
    needed = least_bytes / max(free, 1)
    if needed < MAX_FRACTION:
        remedy = f"set it to at least {min(MAX_FRACTION, needed + 0.01):.2f}"
    else:
        remedy = f"free some memory: at least {_gib(least_bytes)} are needed"
    return ConfigError(
        f"--mem-fraction-static is {fraction} of {_gib(free)} free memory; weights and tables "
        f"take {_gib(taken_bytes)}, which leaves no room for a KV pool: {remedy}"
    )


def _least_tokens(page_size: int) -> int:
    return _rounded_up(MIN_POOL_TOKENS, page_size)


def _rounded_up(tokens: int, page_size: int) -> int:
    return -(-tokens // page_size) * page_size


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / (1 << 30):.2f} GiB"
