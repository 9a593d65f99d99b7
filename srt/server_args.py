"""ServerArgs: every setting of a server, read once, frozen, checked.

The same fields build the command line and Engine(...). Code below receives the few values it needs.
Names follow the field's best-known server where they mean the same. Environment variables are read
here only.
"""

from __future__ import annotations

import argparse
import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from .device_flags import check_device_flags
from .errors import ConfigError
from .setting_checks import check_range, check_type, json_object, option
from .tenants import Tenant, load_tenants

# A prompt, its answer and the token being computed need as much, and so does the warm-up.
MIN_CONTEXT_LENGTH = 16
MAX_RUNNING_REQUESTS = 65536  # memory limits it further, see plan_kv_tokens
MAX_THREADS = 256  # of the CPU engine's team

_MAX_COUNT = 2**31 - 1  # slots and positions are 32-bit integers
_MAX_SECONDS = 10_000_000

DEFAULT_MODEL = "smollm2-135m-instruct"


def _flag(default: Any, help_text: str, group: str, choices: tuple[str, ...] | None = None) -> Any:
    return field(default=default, metadata={"help": help_text, "group": group, "choices": choices})


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerArgs:
    """Settings of one server or Engine; see --help for units and meaning."""

    # model
    model_path: str = _flag(
        DEFAULT_MODEL,
        "Hugging Face style folder, GGUF file, hub id, or the name of a bundled model",
        "model",
    )
    tokenizer_path: str | None = _flag(
        None, "folder or GGUF file with the tokenizer (default: the model's own)", "model"
    )
    served_model_name: str | None = _flag(
        None, "name that clients use (default: --model-path as given)", "model"
    )
    chat_template: str | None = _flag(
        None, "file with a Jinja chat template (default: the model's own)", "model"
    )
    context_length: int | None = _flag(
        None,
        "longest prompt plus output, in tokens; at most the model's (default: the model's)",
        "model",
    )
    dtype: str = _flag(
        "auto",
        "type of weights, activations and KV; auto: the model's own, bfloat16 for GGUF",
        "model",
        ("auto", "bfloat16", "float16", "float32"),
    )
    quantization: str = _flag(
        "none",
        "form of the weights in memory; none: as --dtype says; gguf: the blocks of a GGUF file as "
        "they are; w8a8: quantised at load to 8 bits with a scale per output, activations too; "
        "w8a16: the weights alone. With any of them auto in --dtype is bfloat16",
        "model",
        ("none", "gguf", "w8a8", "w8a16"),
    )
    json_model_override_args: str = _flag(
        "{}", "JSON object whose fields replace those of the model's config.json", "model"
    )
    random_seed: int | None = _flag(
        None, "seed of the draws for requests without a seed (default: random)", "model"
    )
    sampling_defaults: str = _flag(
        "model",
        "source of unset sampling fields: the model's generation_config.json, or fixed defaults",
        "model",
        ("model", "openai"),
    )
    preferred_sampling_params: str = _flag(
        "{}", "JSON object of sampling fields used where a request sets none", "model"
    )

    # http
    host: str = _flag("127.0.0.1", "address to listen on", "http")
    port: int = _flag(30000, "port to listen on; 0 takes a free one and logs it", "http")
    api_key: str | None = _flag(
        None, "key that clients must send as a Bearer token (default: none)", "http"
    )
    admin_api_key: str | None = _flag(
        None,
        "key for /flush_cache, /abort_request, /pin_prefix and /unpin_prefix (default: the value "
        "of --api-key)",
        "http",
    )
    tenants_file: str | None = _flag(
        None, "JSON file of clients with keys and token quotas of their own (default: none)", "http"
    )
    max_request_body_bytes: int = _flag(32 << 20, "largest request body, in bytes", "http")
    cors_allow_origins: str = _flag(
        "", "comma-separated origins that browsers may call from (default: none)", "http"
    )
    stream_interval: int = _flag(1, "tokens per streamed chunk", "http")
    incremental_streaming_output: bool = _flag(
        False, "/generate streams deltas instead of the whole text so far", "http"
    )
    drain_timeout_seconds: float = _flag(
        60.0, "longest wait for open requests after SIGTERM or SIGINT, in seconds", "http"
    )
    skip_server_warmup: bool = _flag(
        False, "do not run a short request before reporting ready", "http"
    )
    allow_auto_truncate: bool = _flag(
        False, "cut the start of prompts that exceed the context instead of refusing them", "http"
    )

    # memory
    mem_fraction_static: float | None = _flag(
        None,
        "share of free memory for weights and KV pool (default: 0.9 on a GPU; 0.5 on a CPU, and a "
        "pool of at most 65,536 tokens or 8 contexts)",
        "memory",
    )
    max_total_tokens: int | None = _flag(
        None, "size of the KV pool in tokens (default: from --mem-fraction-static)", "memory"
    )
    kv_cache_dtype: str = _flag(
        "auto",
        "type of cached keys and values; auto: that of --dtype; int8: with a scale for each token "
        "and head, about half the bytes of bfloat16; fp8_e4m3: on a GPU, half the bytes",
        "memory",
        ("auto", "bfloat16", "float32", "int8", "fp8_e4m3"),
    )
    page_size: int = _flag(1, "KV slots per page, in tokens", "memory")
    disable_radix_cache: bool = _flag(False, "do not reuse the KV of earlier requests", "memory")
    radix_eviction_policy: str = _flag(
        "lru",
        "what leaves the cache first: least recently used (lru), fewest hits (lfu), never hit "
        "(slru), oldest (fifo) or lowest request priority (priority)",
        "memory",
        ("lru", "lfu", "slru", "fifo", "priority"),
    )

    pin_pool_share: float = _flag(
        0.25, "share of the KV pool that /pin_prefix may keep from eviction, from 0 to 1", "memory"
    )

    # scheduling
    max_running_requests: int | None = _flag(
        None, "requests computed at once (default: from the pool, at most 256)", "scheduling"
    )
    max_queued_requests: int | None = _flag(
        None, "waiting requests before new ones get 503 (default: no limit)", "scheduling"
    )
    chunked_prefill_size: int = _flag(
        512, "prompt tokens computed per step; -1: whole prompts at once", "scheduling"
    )
    schedule_policy: str = _flag(
        "lpm",
        "queue order: lpm (longest cached prefix first), fcfs (arrival), dfs-weight (branch of the "
        "tree with most waiting first), hrrn (longest wait per uncached token first), lof (longest "
        "output asked for first), shortest-prefill-first, random",
        "scheduling",
        ("lpm", "fcfs", "dfs-weight", "hrrn", "lof", "shortest-prefill-first", "random"),
    )
    program_order: bool = _flag(
        False,
        "requests of programs that have begun (program_id) go before all others, the oldest "
        "program first; --schedule-policy holds within each program and among the rest",
        "scheduling",
    )
    ageing_stride: int = _flag(
        8, "every so many admissions one goes to the oldest waiting request", "scheduling"
    )
    in_batch_sharing_min_tokens: int = _flag(
        32,
        "a waiting request lets another compute their common prefix first if that saves it at "
        "least so many tokens; 0: requests never wait for each other",
        "scheduling",
    )
    in_batch_sharing_max_cached_tokens: int | None = _flag(
        None,
        "a request with more cached prompt tokens than this does not wait for another to compute "
        "the rest (default: no bound)",
        "scheduling",
    )
    max_wait_seconds: float | None = _flag(
        None,
        "a request waiting for longer comes before all others (default: no bound)",
        "scheduling",
    )
    max_queued_tokens: int | None = _flag(
        None, "waiting prompt tokens before new requests get 503 (default: no limit)", "scheduling"
    )
    shed_ttft_seconds: float | None = _flag(
        None,
        "refuse with 503 who would wait longer for a first token, as far as can be told "
        "(default: refuse nobody)",
        "scheduling",
    )
    request_timeout_seconds: float | None = _flag(
        None,
        "longest time from arrival to the last token; then the request ends with 504 "
        "(default: no limit; requests may set timeout_seconds)",
        "scheduling",
    )
    max_prefill_slice_ms: float | None = _flag(
        None,
        "prompt work that decoding requests wait for in a step, in milliseconds "
        "(default: --chunked-prefill-size alone decides)",
        "scheduling",
    )
    priority_scheduling_preemption_threshold: int = _flag(
        10,
        "a request retracts running ones whose priority is lower by more than this",
        "scheduling",
    )
    admission_rule: str = _flag(
        "ratio",
        "how output still to come is booked: ratio (a share that adapts), reserve-all (all of it), "
        "prompt-only (none), learnt (from the lengths of finished outputs)",
        "scheduling",
        ("ratio", "reserve-all", "prompt-only", "learnt"),
    )
    target_retraction_rate: float = _flag(
        0.002, "share of requests that the learnt rule lets be retracted", "scheduling"
    )
    overlap_depth: int | None = _flag(
        None,
        "steps in flight while the next one is planned: 0, or 1 to hide the scheduler's own time "
        "(default: 1 on a GPU, 0 on a CPU)",
        "scheduling",
    )
    test_retract_every: int = _flag(
        0, "for tests: retract a request every so many steps, needed or not; 0: never", "scheduling"
    )
    schedule_conservativeness: float = _flag(
        1.0, "scales the forecast of output lengths; higher admits fewer requests", "scheduling"
    )
    enable_mixed_chunk: bool = _flag(
        True, "decode rows ride in the pass that prefills a chunk", "scheduling"
    )

    # structured output
    grammar_backend: str = _flag(
        "auto",
        "who enforces grammars; auto is llguidance: xgrammar enforces less, and takes 250 MiB more",
        "structured output",
        ("auto", "llguidance", "xgrammar"),
    )
    json_whitespace: str = _flag(
        "bounded",
        "whitespace between the tokens of a JSON answer: none, one space after commas and colons, "
        "up to 8 characters anywhere, or any amount",
        "structured output",
        ("compact", "spaced", "bounded", "unbounded"),
    )
    grammar_timeout_seconds: float = _flag(
        1.5,
        "CPU seconds for checking and compiling one grammar; beyond them 400",
        "structured output",
    )
    grammar_cache_mib: int = _flag(
        256, "MiB of compiled grammars kept by the scheduler", "structured output"
    )
    disable_jump_forward: bool = _flag(
        False, "draw tokens that a grammar forces one by one", "structured output"
    )

    # tools and reasoning
    tool_call_parser: str = _flag(
        "auto",
        "how the model writes tool calls; auto: as its chat template shows",
        "tools and reasoning",
        (
            "auto",
            "hermes",
            "llama3",
            "mistral",
            "pythonic",
            "smollm2",
            "qwen",
            "qwen25",
            "qwen3",
        ),
    )
    reasoning_parser: str | None = _flag(
        None,
        "how the model marks its thinking, which then goes to reasoning_content (default: it is "
        "not told apart)",
        "tools and reasoning",
        ("deepseek-r1", "qwen3", "qwen3-thinking", "glm45", "kimi", "magistral"),
    )

    # execution
    device: str = _flag(
        "auto", "cpu (which is auto) or cuda, an NVIDIA GPU", "execution", ("auto", "cpu", "cuda")
    )
    attention_backend: str = _flag(
        "auto",
        "who computes: cpu_native (C++, the default on a CPU), triton (the default on a GPU), "
        "flashinfer (GPU, if installed) or torch_reference (slow)",
        "execution",
        ("auto", "cpu_native", "torch_reference", "triton", "flashinfer"),
    )
    disable_cuda_graph: bool = _flag(
        False, "launch decode steps on a GPU operation by operation", "execution"
    )
    cuda_graph_max_rows: int = _flag(
        256, "most rows of a decode step that is captured as a CUDA graph", "execution"
    )
    deterministic: bool = _flag(
        False, "attention on a GPU does not depend on the batch, at some cost", "execution"
    )
    threads: int | None = _flag(None, "CPU threads of the model (default: all cores)", "execution")

    # observability
    log_level: str = _flag(
        "info",
        "least severe log lines shown",
        "observability",
        ("debug", "info", "warning", "error"),
    )
    decode_log_interval: int = _flag(
        40, "steps between two log lines of the scheduler", "observability"
    )
    watchdog_timeout: float = _flag(
        300.0,
        "seconds one step may take before the server dumps its stacks and ends",
        "observability",
    )

    def __post_init__(self) -> None:
        for one in dataclasses.fields(self):
            value = getattr(self, one.name)
            check_type(one.name, value, str(one.type))
            _check_choice(one.name, value, one.metadata["choices"])
        _check_counts(self)
        _check_numbers(self)
        check_device_flags(self)
        for name in ("json_model_override_args", "preferred_sampling_params"):
            json_object(name, getattr(self, name))
        if self.chat_template is not None and not Path(self.chat_template).is_file():
            raise ConfigError(f"--chat-template names {self.chat_template!r}, which is not a file")
        # Read early: a fault in the file is told before anything is loaded.
        if {one.api_key for one in self.tenants} & {self.api_key, self.admin_api_key}:
            raise ConfigError(
                "a tenant's key in --tenants-file is also --api-key or --admin-api-key"
            )
        if self.api_key == "" or self.admin_api_key == "":
            raise ConfigError("--api-key and --admin-api-key must not be empty")

    @property
    def model_name(self) -> str:
        """The name that /v1/models shows."""
        return self.served_model_name or self.model_path

    @property
    def tenants(self) -> list[Tenant]:
        """The tenants of tenants_file."""
        return [] if self.tenants_file is None else load_tenants(self.tenants_file)

    @property
    def model_overrides(self) -> dict[str, Any]:
        """json_model_override_args, parsed."""
        return json_object("json_model_override_args", self.json_model_override_args)

    @property
    def preferred_sampling(self) -> dict[str, Any]:
        """preferred_sampling_params, parsed."""
        return json_object("preferred_sampling_params", self.preferred_sampling_params)

    def public_dict(self) -> dict[str, Any]:
        """All fields by name, with the keys left out: fit to be shown by /server_info."""
        hidden = {"api_key", "admin_api_key"}
        return {k: v for k, v in dataclasses.asdict(self).items() if k not in hidden}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add one option per field, in groups, with type, default and unit in its help."""
    groups: dict[str, Any] = {}
    for one in dataclasses.fields(ServerArgs):
        group = one.metadata["group"]
        if group not in groups:
            groups[group] = parser.add_argument_group(group)
        kind = str(one.type)
        text = one.metadata["help"].replace("%", "%%")
        if one.default is not None and "(default" not in text:
            text += f" (default: {one.default!r})"
        names = [option(one.name)] + (["--model"] if one.name == "model_path" else [])
        if kind == "bool":
            groups[group].add_argument(
                *names, action=argparse.BooleanOptionalAction, default=one.default, help=text
            )
            continue
        choices = one.metadata["choices"]
        caster = {"int": int, "float": float}.get(kind.split(" ")[0], str)
        groups[group].add_argument(
            *names,
            dest=one.name,
            type=caster,
            default=one.default,
            # ServerArgs checks choices: its text says more than argparse's.
            metavar="{" + ",".join(choices) + "}" if choices else caster.__name__.upper(),
            help=text,
        )


def from_command_line(argv: list[str] | None = None) -> ServerArgs:
    """Parse argv (default: sys.argv) into ServerArgs; a bad value exits with status 2."""
    parser = _OneLineParser(
        prog="python -m runtime.launch_server",
        description="Serve a large language model; its KV cache is one radix tree.",
    )
    add_arguments(parser)
    values = vars(parser.parse_args(argv))
    try:
        return ServerArgs(**values)
    except ConfigError as error:
        parser.error(error.message)


class _OneLineParser(argparse.ArgumentParser):
    """Tells a mistake in one line: the usage of all flags would bury it."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message}\n")


def _check_choice(name: str, value: Any, choices: tuple[str, ...] | None) -> None:
    if not choices or value in choices or value is None:
        return
    raise ConfigError(f"{option(name)} is {value!r}; choose from {', '.join(choices)}")


def _check_counts(args: ServerArgs) -> None:
    check_range("context_length", args.context_length, MIN_CONTEXT_LENGTH, _MAX_COUNT)
    check_range("max_total_tokens", args.max_total_tokens, 1, _MAX_COUNT)
    check_range("page_size", args.page_size, 1, _MAX_COUNT)
    check_range("max_running_requests", args.max_running_requests, 1, MAX_RUNNING_REQUESTS)
    check_range("max_queued_requests", args.max_queued_requests, 0, _MAX_COUNT)
    check_range("max_queued_tokens", args.max_queued_tokens, 0, _MAX_COUNT)
    check_range("overlap_depth", args.overlap_depth, 0, 1)
    if args.cuda_graph_max_rows == 0:
        raise ConfigError(
            "--cuda-graph-max-rows is 0; it must be at least 1, or set --disable-cuda-graph"
        )
    check_range("cuda_graph_max_rows", args.cuda_graph_max_rows, 1, MAX_RUNNING_REQUESTS)
    check_range("ageing_stride", args.ageing_stride, 1, _MAX_COUNT)
    check_range("in_batch_sharing_min_tokens", args.in_batch_sharing_min_tokens, 0, _MAX_COUNT)
    most_cached = args.in_batch_sharing_max_cached_tokens
    check_range("in_batch_sharing_max_cached_tokens", most_cached, 0, _MAX_COUNT)
    check_range("test_retract_every", args.test_retract_every, 0, _MAX_COUNT)
    threshold = args.priority_scheduling_preemption_threshold
    check_range("priority_scheduling_preemption_threshold", threshold, 0, 2**32)
    check_range("stream_interval", args.stream_interval, 1, _MAX_COUNT)
    check_range("decode_log_interval", args.decode_log_interval, 1, _MAX_COUNT)
    check_range("max_request_body_bytes", args.max_request_body_bytes, 1, 2**40)
    check_range("grammar_cache_mib", args.grammar_cache_mib, 1, 2**20)
    check_range("threads", args.threads, 1, MAX_THREADS)
    check_range("port", args.port, 0, 65535)
    check_range("random_seed", args.random_seed, -(2**63), 2**63 - 1)
    chunk = args.chunked_prefill_size
    if chunk != -1 and not (0 < chunk <= _MAX_COUNT and chunk % args.page_size == 0):
        raise ConfigError(
            f"--chunked-prefill-size is {chunk}; it must be -1 or a positive multiple of "
            f"--page-size {args.page_size}, at most {_MAX_COUNT}"
        )


def _check_numbers(args: ServerArgs) -> None:
    fraction = args.mem_fraction_static
    if fraction is not None and not 0 < fraction < 1:
        raise ConfigError(f"--mem-fraction-static is {fraction}; it must be between 0 and 1")
    check_range("drain_timeout_seconds", args.drain_timeout_seconds, 0, _MAX_SECONDS)
    check_range("pin_pool_share", args.pin_pool_share, 0, 1)
    check_range("target_retraction_rate", args.target_retraction_rate, 0, 1)
    for name in (
        "schedule_conservativeness",
        "watchdog_timeout",
        "max_wait_seconds",
        "shed_ttft_seconds",
        "request_timeout_seconds",
        "max_prefill_slice_ms",
        "grammar_timeout_seconds",
    ):
        check_range(name, getattr(args, name), 0, _MAX_SECONDS, is_low_open=True)
