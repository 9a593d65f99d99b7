"""plan_device_kv_tokens: how many tokens the KV pool on a device holds, from what was measured.

Unlike on the CPU the weights are loaded already, and a step of the largest size and the largest
graphs have been run, so the rest of the memory is the pool's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ..errors import ConfigError, DeviceOutOfMemory
from ..loading.model_config import ModelConfig
from ..memory.kv_layout import bytes_per_token
from ..memory.request_table import default_num_rows, table_bytes
from ..server_args import ServerArgs
from .device import Device
from .kv_budget import MIN_POOL_TOKENS

DEFAULT_DEVICE_FRACTION = 0.9
# More than this share leaves nothing for what libraries allocate on their own later.
MAX_DEVICE_FRACTION = 0.97


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """Bytes: free before anything was loaded, and what each part was measured to take."""

    free_at_start: int
    weights: int
    activations: int
    graphs: int

    @property
    def total(self) -> int:
        """All parts together."""
        return self.weights + self.activations + self.graphs

    def parts(self) -> str:
        """The parts for an error's text."""
        return (
            f"weights take {gib(self.weights)}, a step {gib(self.activations)}, graphs "
            f"{gib(self.graphs)}"
        )


def plan_device_kv_tokens(
    args: ServerArgs, config: ModelConfig, kv_dtype: str, use: DeviceUse
) -> int:
    """Tokens of the pool, a multiple of page_size.

    Raises ConfigError naming the flag, the figures and a value that would work.
    """
    token_bytes = bytes_per_token(config, kv_dtype)
    fraction = _device_fraction(args)
    room = int(use.free_at_start * fraction) - use.total
    most = args.max_total_tokens or max(0, room) // token_bytes
    tables = device_table_bytes(args, config.served_context(args.context_length), most)
    tokens = _whole_pages(max(0, room - tables) // token_bytes, args.page_size)
    least = _whole_pages(MIN_POOL_TOKENS + args.page_size - 1, args.page_size)
    if args.max_total_tokens is not None:
        return _explicit_tokens(args, tokens, least, token_bytes, use)
    if tokens < least:
        raise _too_little(fraction, use, tables + least * token_bytes)
    return tokens


def device_table_bytes(args: ServerArgs, num_columns: int, num_tokens: int) -> int:
    """Bytes of the slot table on the device for a pool of num_tokens."""
    num_rows = args.max_running_requests or default_num_rows(num_tokens)
    return table_bytes(num_rows, min(num_columns, max(1, num_tokens)))


@contextmanager
def refusing_out_of_memory(device: Device, refusal: Callable[[int], ConfigError]) -> Iterator[None]:
    """Raise refusal, of the bytes that were free before, where the device has too few."""
    free_bytes = device.free_bytes()
    try:
        yield
    except Exception as error:
        if not (isinstance(error, DeviceOutOfMemory) or device.is_out_of_memory(error)):
            raise
        raise refusal(free_bytes) from error


def out_of_memory_at_start() -> ConfigError:
    """For a device that is full before anything was loaded."""
    return ConfigError(
        "the device has no memory to begin with: end other programs on it (nvidia-smi lists "
        "them), or serve with --device cpu"
    )


def out_of_memory_at_load(num_bytes: int, free_bytes: int) -> ConfigError:
    """For weights that do not fit the device."""
    return ConfigError(
        f"the weights take {gib(num_bytes)}, and the device has {gib(free_bytes)} free: end other "
        "programs on it, choose a smaller model, or serve with --device cpu"
    )


def out_of_memory_at_profile(
    num_tokens: int, num_rows: int, page_size: int, free_bytes: int
) -> ConfigError:
    """For a largest step that does not fit beside the weights."""
    fewer = max(page_size, _whole_pages(num_tokens // 2, page_size))
    return ConfigError(
        f"a step of {num_tokens} tokens and {num_rows} rows does not fit in the "
        f"{gib(free_bytes)} that the weights leave: set --chunked-prefill-size to "
        f"{fewer} or less, and --max-running-requests to "
        f"{max(1, num_rows // 2)} or less"
    )


def out_of_memory_at_graphs(num_rows: int, free_bytes: int) -> ConfigError:
    """For decode graphs that do not fit beside weights and step."""
    smaller = f"set --cuda-graph-max-rows to {num_rows // 2} or less, or " if num_rows > 1 else ""
    return ConfigError(
        f"the graphs of decode steps of up to {num_rows} rows do not fit in the "
        f"{gib(free_bytes)} that is left: {smaller}set --disable-cuda-graph"
    )


def out_of_memory_at_pool(args: ServerArgs, use: DeviceUse, num_tokens: int) -> ConfigError:
    """For a pool of num_tokens that does not fit though it was computed to."""
    if args.max_total_tokens is not None:
        remedy = f"--max-total-tokens to {int(num_tokens * 0.9)}"
    else:
        remedy = f"--mem-fraction-static to {_device_fraction(args) - 0.05:.2f}"
    return ConfigError(
        f"the KV pool of {num_tokens} tokens and the graphs over it do not fit, though "
        f"{gib(use.free_at_start)} were free, {use.parts()}; other programs may use the device: "
        f"set {remedy} or less"
    )


def gib(num_bytes: int) -> str:
    """num_bytes for an error's text."""
    return f"{num_bytes / (1 << 30):.2f} GiB"


def _device_fraction(args: ServerArgs) -> float:
    if args.mem_fraction_static is not None:
        return args.mem_fraction_static
    return DEFAULT_DEVICE_FRACTION if args.max_total_tokens is None else MAX_DEVICE_FRACTION


def _explicit_tokens(
    args: ServerArgs, possible: int, least: int, token_bytes: int, use: DeviceUse
) -> int:
    asked = args.max_total_tokens or 0
    tokens = _whole_pages(asked, args.page_size)
    if tokens < least:
        raise ConfigError(
            f"--max-total-tokens is {asked}; with --page-size {args.page_size} it must be at least "
            f"{least}"
        )
    if tokens > possible:
        remedy = f"{possible} would fit" if possible >= least else "no pool fits beside them"
        raise ConfigError(
            f"--max-total-tokens is {asked}, which takes {gib(tokens * token_bytes)}; "
            f"{gib(use.free_at_start)} were free, {use.parts()}: {remedy}"
        )
    return tokens


def _whole_pages(tokens: int, page_size: int) -> int:
    return tokens - tokens % page_size


def _too_little(fraction: float, use: DeviceUse, least_bytes: int) -> ConfigError:
    needed = (use.total + least_bytes) / max(1, use.free_at_start)
    if needed + 0.01 <= MAX_DEVICE_FRACTION:
        remedy = f"set it to at least {needed + 0.01:.2f}"
    else:
        remedy = "lower --chunked-prefill-size or --cuda-graph-max-rows, or choose a smaller model"
    return ConfigError(
        f"--mem-fraction-static is {fraction} of {gib(use.free_at_start)} free memory; "
        f"{use.parts()}, which leaves no room for a KV pool: {remedy}"
    )
