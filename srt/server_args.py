"""ServerArgs: every setting of a server, read once, frozen, checked.

The same fields build the command line and Engine(...). Code below receives the few values it needs.
Names follow the field's best-known server where they mean the same. Environment variables are read
here only.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .errors import ConfigError

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
        "they are; w8a8: quantised at load to 8 bits with a scale per output, activations too. "
        "With gguf and w8a8, auto in --dtype is bfloat16",
        "model",
        ("none", "gguf", "w8a8"),
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
        None, "key for /flush_cache and /abort_request (default: the value of --api-key)", "http"
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
        "share of free memory for weights and KV pool (default: 0.5 on a CPU, and a pool of "
        "at most 65,536 tokens or 8 contexts)",
        "memory",
    )
    max_total_tokens: int | None = _flag(
        None, "size of the KV pool in tokens (default: from --mem-fraction-static)", "memory"
    )
    page_size: int = _flag(1, "KV slots per page, in tokens", "memory")
    disable_radix_cache: bool = _flag(False, "do not reuse the KV of earlier requests", "memory")

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
        "queue order: lpm (longest cached prefix first) or fcfs (arrival)",
        "scheduling",
        ("lpm", "fcfs"),
    )
    schedule_conservativeness: float = _flag(
        1.0, "scales the forecast of output lengths; higher admits fewer requests", "scheduling"
    )
    enable_mixed_chunk: bool = _flag(
        True, "decode rows ride in the pass that prefills a chunk", "scheduling"
    )

    # execution
    device: str = _flag(
        "auto", "device to run on; GPUs are not supported yet", "execution", ("auto", "cpu")
    )
    attention_backend: str = _flag(
        "auto",
        "who computes the model: cpu_native (C++, the default on a CPU) or torch_reference (slow)",
        "execution",
        ("auto", "cpu_native", "torch_reference"),
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
            _check_type(one.name, getattr(self, one.name), str(one.type))
            choices = one.metadata["choices"]
            value = getattr(self, one.name)
            if choices and value not in choices:
                why = ""
                if one.name == "device" and str(value).startswith("cuda"):
                    why = ", and GPU support is not built yet"
                raise ConfigError(
                    f"{_option(one.name)} is {value!r}{why}; choose from {', '.join(choices)}"
                )
        _at_least(
            self, 1, "context_length", "max_total_tokens", "page_size", "max_running_requests"
        )
        _at_least(self, 1, "stream_interval", "max_request_body_bytes", "decode_log_interval")
        _at_least(self, 1, "threads")
        _at_least(self, 0, "max_queued_requests", "drain_timeout_seconds")
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"--port is {self.port}; it must be from 0 to 65535")
        if self.mem_fraction_static is not None and not 0 < self.mem_fraction_static < 1:
            raise ConfigError(
                f"--mem-fraction-static is {self.mem_fraction_static}; it must be between 0 and 1"
            )
        if self.chunked_prefill_size != -1 and (
            self.chunked_prefill_size < 1 or self.chunked_prefill_size % self.page_size
        ):
            raise ConfigError(
                f"--chunked-prefill-size is {self.chunked_prefill_size}; it must be -1 or a "
                f"positive multiple of --page-size {self.page_size}"
            )
        if self.schedule_conservativeness <= 0 or self.watchdog_timeout <= 0:
            raise ConfigError("--schedule-conservativeness and --watchdog-timeout must be above 0")
        if self.quantization != "none":
            _check_quantized(self)
        for name in ("json_model_override_args", "preferred_sampling_params"):
            _json_object(name, getattr(self, name))
        if self.chat_template is not None and not Path(self.chat_template).is_file():
            raise ConfigError(f"--chat-template names {self.chat_template!r}, which is not a file")
        if self.api_key == "" or self.admin_api_key == "":
            raise ConfigError("--api-key and --admin-api-key must not be empty")

    @property
    def model_name(self) -> str:
        """The name that /v1/models shows."""
        return self.served_model_name or self.model_path

    @property
    def model_overrides(self) -> dict[str, Any]:
        """json_model_override_args, parsed."""
        return _json_object("json_model_override_args", self.json_model_override_args)

    @property
    def preferred_sampling(self) -> dict[str, Any]:
        """preferred_sampling_params, parsed."""
        return _json_object("preferred_sampling_params", self.preferred_sampling_params)

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
        names = [_option(one.name)] + (["--model"] if one.name == "model_path" else [])
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
    parser = argparse.ArgumentParser(
        prog="python -m runtime.launch_server",
        description="Serve a large language model; its KV cache is one radix tree.",
    )
    add_arguments(parser)
    values = vars(parser.parse_args(argv))
    try:
        return ServerArgs(**values)
    except ConfigError as error:
        parser.error(error.message)


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")


def _check_type(name: str, value: Any, annotation: str) -> None:
    allowed: dict[str, type | tuple[type, ...]] = {
        "int": int,
        "float": (int, float),
        "str": str,
        "bool": bool,
    }
    parts = annotation.split(" | ")
    if value is None and "None" in parts:
        return
    wanted = allowed[parts[0]]
    if not isinstance(value, wanted) or (isinstance(value, bool) and parts[0] != "bool"):
        raise ConfigError(f"{_option(name)} is {value!r}; it must be of type {annotation}")


def _at_least(args: ServerArgs, low: int, *names: str) -> None:
    for name in names:
        value = getattr(args, name)
        if value is not None and value < low:
            raise ConfigError(f"{_option(name)} is {value}; it must be at least {low}")


def _check_quantized(args: ServerArgs) -> None:
    chosen = f"--quantization is {args.quantization}"
    if args.dtype not in ("auto", "bfloat16"):
        raise ConfigError(
            f"{chosen}, which computes in bfloat16, and --dtype is {args.dtype}; leave one of them "
            "at its default"
        )
    if args.attention_backend == "torch_reference":
        raise ConfigError(
            f"{chosen}, which only cpu_native computes, and --attention-backend is "
            "torch_reference; leave one of them at its default"
        )


def _json_object(name: str, text: str) -> dict[str, Any]:
    try:
        parsed = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{_option(name)} is not JSON: {error}") from None
    if not isinstance(parsed, dict):
        raise ConfigError(f"{_option(name)} must be a JSON object, not {type(parsed).__name__}")
    return parsed
