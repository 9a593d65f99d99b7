"""ModelConfig: what config.json and generation_config.json say, checked and spelled one way.

Reads both spellings in use (transformers 4 and 5). Knows nothing of tensors and imports no torch,
so that the HTTP process can read it. What cannot be computed exactly is refused here, by name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ..errors import ConfigError, ModelLoadError
from ..server_args import MIN_CONTEXT_LENGTH
from .config_fields import Fields, shown
from .generation_config import FILE_NAME, check_generation_config, end_ids, stored_defaults

# Far above any model there is: a damaged or hostile file is told by its field, not by running out
# of memory.
_MAX_LAYERS = 1024
_MAX_HEADS = 4096
_MAX_HEAD_DIM = 4096
_MAX_WIDTH = 2**20
_MAX_VOCAB_SIZE = 2**24
_MAX_CONTEXT_LENGTH = 2**24


@dataclass(frozen=True, slots=True)
class Family:
    """What an architecture fixes beyond its config fields; None: the config's own field decides."""

    qkv_bias: bool | None
    o_bias: bool | None
    mlp_bias: bool | None
    qk_norm: bool
    default_head_dim: int | None = None
    default_num_kv_heads: int | None = None


FAMILIES: Mapping[str, Family] = {
    "LlamaForCausalLM": Family(qkv_bias=None, o_bias=None, mlp_bias=None, qk_norm=False),
    "MistralForCausalLM": Family(False, False, False, False, default_num_kv_heads=8),
    "Qwen2ForCausalLM": Family(True, False, False, False),
    "Qwen3ForCausalLM": Family(None, None, False, qk_norm=True, default_head_dim=128),
}


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary position embedding: base and scaling. The llama3 fields are used by that kind only."""

    theta: float
    kind: Literal["default", "linear", "llama3"] = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context_length: int = 8192


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """One decoder model. context_length is in tokens; eos_token_ids is the union of both files.

    attention_bias is that of q, k and v; attention_output_bias that of o. sliding_window is kept
    only where it covers the whole context, so it never changes a result. generation_defaults are
    the sampling fields of generation_config.json, not checked yet.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope: RopeConfig
    tie_word_embeddings: bool
    attention_bias: bool
    attention_output_bias: bool
    mlp_bias: bool
    qk_norm: bool
    sliding_window: int | None
    context_length: int
    eos_token_ids: tuple[int, ...]
    dtype: str
    generation_defaults: Mapping[str, Any] = field(default_factory=dict)

    @staticmethod
    def load(folder: Path, overrides: dict[str, Any]) -> ModelConfig:
        """Read folder's config.json, with its fields replaced by overrides.

        Raises ModelLoadError naming the file, the field and the value that cannot be served.
        """
        raw = _read_json(folder / "config.json", required=True)
        generation = Fields(_read_json(folder / FILE_NAME, required=False), str(folder / FILE_NAME))
        return _parse(
            Fields(_with_overrides(raw, overrides), str(folder / "config.json")), generation
        )

    def check_generation_config(self, folder: Path, *, uses_sampling: bool) -> None:
        """Check folder's generation_config.json as a server does at its start.

        Raises ModelLoadError for a wrong value; logs what is asked for and not done. uses_sampling:
        whether its sampling fields serve as defaults.
        """
        file = folder / FILE_NAME
        generation = _read_json(file, required=False)
        check_generation_config(generation, str(file), self.vocab_size, uses_sampling=uses_sampling)

    def served_context(self, wanted: int | None) -> int:
        """Return the context to serve, in tokens: wanted, by default the model's own.

        Raises ConfigError if wanted is more than the model's.
        """
        if wanted is None:
            return self.context_length
        if wanted > self.context_length:
            raise ConfigError(
                f"--context-length is {wanted}, more than the model's {self.context_length}; lower "
                "it, or raise the model's, which it was not trained for, with "
                f"--json-model-override-args '{{\"max_position_embeddings\": {wanted}}}'"
            )
        return wanted


def _read_json(path: Path, *, required: bool) -> dict[str, Any]:
    try:
        parsed = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if not required:
            return {}
        raise ModelLoadError(
            f"{path} does not exist; a model folder holds config.json, safetensors and a tokenizer"
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise ModelLoadError(f"{path} cannot be read as JSON: {error}") from None
    if not isinstance(parsed, dict):
        raise ModelLoadError(f"{path} must hold a JSON object, not {type(parsed).__name__}")
    return parsed


def _with_overrides(raw: dict[str, Any], overrides: dict[str, Any]) -> dict[str, Any]:
    merged = {**raw, **overrides}
    # The newer spelling wins when a file has both; an override in the older one must still count.
    nested = merged.get("rope_parameters")
    if "rope_theta" in overrides and isinstance(nested, dict):
        merged["rope_parameters"] = {**nested, "rope_theta": overrides["rope_theta"]}
    if "rope_scaling" in overrides and "rope_parameters" not in overrides:
        theta = nested.get("rope_theta") if isinstance(nested, dict) else None
        merged.pop("rope_parameters", None)
        if theta is not None:
            merged.setdefault("rope_theta", theta)
    if "dtype" not in overrides and "torch_dtype" in overrides:
        merged["dtype"] = overrides["torch_dtype"]
    return merged


def _parse(fields: Fields, generation: Fields) -> ModelConfig:
    architecture = _architecture(fields)
    family = FAMILIES[architecture]
    fields.refuse_unless("hidden_act", "silu", "silu", "swish")
    if fields.get("quantization_config") is not None:
        raise fields.error(
            "quantization_config", "quantised safetensors are not served; use a GGUF"
        )
    num_heads = fields.count("num_attention_heads", most=_MAX_HEADS)
    num_kv_heads = fields.count(
        "num_key_value_heads", family.default_num_kv_heads or num_heads, most=_MAX_HEADS
    )
    if num_heads % num_kv_heads:
        raise fields.error("num_key_value_heads", f"it must divide num_attention_heads {num_heads}")
    hidden_size = fields.count("hidden_size", most=_MAX_WIDTH)
    if family.default_head_dim is None and fields.get("head_dim") is None:
        if hidden_size < num_heads:
            raise fields.error("num_attention_heads", f"it is above hidden_size {hidden_size}")
    head_dim = fields.count(
        "head_dim", family.default_head_dim or hidden_size // num_heads, most=_MAX_HEAD_DIM
    )
    if head_dim % 2:
        raise fields.error("head_dim", f"it is {head_dim}; rotary embedding needs an even number")
    context_length = fields.count(
        "max_position_embeddings", least=MIN_CONTEXT_LENGTH, most=_MAX_CONTEXT_LENGTH
    )
    vocab_size = fields.count("vocab_size", most=_MAX_VOCAB_SIZE)
    attention_bias = fields.flag("attention_bias", False)
    return ModelConfig(
        architecture=architecture,
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=fields.count("intermediate_size", most=_MAX_WIDTH),
        num_layers=fields.count("num_hidden_layers", most=_MAX_LAYERS),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        rms_norm_eps=fields.positive("rms_norm_eps", 1e-6),
        rope=_rope(fields, context_length),
        tie_word_embeddings=fields.flag("tie_word_embeddings", False),
        attention_bias=attention_bias if family.qkv_bias is None else family.qkv_bias,
        attention_output_bias=attention_bias if family.o_bias is None else family.o_bias,
        mlp_bias=fields.flag("mlp_bias", False) if family.mlp_bias is None else family.mlp_bias,
        qk_norm=family.qk_norm,
        sliding_window=_sliding_window(fields, architecture, context_length),
        context_length=context_length,
        eos_token_ids=_eos_token_ids(fields, generation, vocab_size),
        dtype=_dtype(fields),
        generation_defaults=stored_defaults(generation.values),
    )


def _architecture(fields: Fields) -> str:
    names = fields.get("architectures")
    if not isinstance(names, list) or not names or not isinstance(names[0], str):
        raise fields.error("architectures", "it must be a list with one name")
    if names[0] not in FAMILIES:
        raise fields.error(
            "architectures", f"{names[0][:100]} is not served; known are {', '.join(FAMILIES)}"
        )
    return names[0]


def _rope(fields: Fields, context_length: int) -> RopeConfig:
    nested_name = "rope_parameters"
    nested = fields.get(nested_name)
    if nested is None:
        nested_name = "rope_scaling"
        nested = fields.get(nested_name) or {}
    if not isinstance(nested, dict):
        raise fields.error(nested_name, "it must be an object")
    rope = Fields(nested, f"{fields.source}, {nested_name}")
    theta = rope.positive("rope_theta", fields.positive("rope_theta", 10000.0))
    for owner in (rope, fields):
        if owner.positive("partial_rotary_factor", 1.0) != 1.0:
            raise owner.error("partial_rotary_factor", "partial rotary embedding is not served")
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind == "default":
        return RopeConfig(theta)
    if kind == "linear":
        return RopeConfig(theta, "linear", rope.positive("factor"))
    if kind == "llama3":
        low, high = rope.positive("low_freq_factor"), rope.positive("high_freq_factor")
        if high <= low:
            raise rope.error("high_freq_factor", f"it must be above low_freq_factor {low}")
        original = rope.count("original_max_position_embeddings", context_length)
        return RopeConfig(theta, "llama3", rope.positive("factor"), low, high, original)
    raise rope.error(
        "rope_type", f"{shown(kind)} is not served; known are default, linear and llama3"
    )


def _sliding_window(fields: Fields, architecture: str, context_length: int) -> int | None:
    if architecture == "LlamaForCausalLM":
        return None
    if architecture != "MistralForCausalLM" and not fields.flag("use_sliding_window", False):
        return None
    # 4096 is what the published reference implementations assume when the field is absent;
    # null means no window.
    if "sliding_window" in fields.values and fields.values["sliding_window"] is None:
        return None
    window = fields.count("sliding_window", 4096)
    if window < context_length:
        raise fields.error(
            "sliding_window",
            f"it is {window}, shorter than the context of {context_length} tokens, and windowed "
            "attention is not served; keep to the window with --json-model-override-args "
            f"'{{\"max_position_embeddings\": {window}}}'",
        )
    return window


def _eos_token_ids(fields: Fields, generation: Fields, vocab_size: int) -> tuple[int, ...]:
    found = {
        one for owner in (fields, generation) for one in end_ids(owner.get("eos_token_id"), owner)
    }
    return tuple(sorted(one for one in found if one < vocab_size))


def _dtype(fields: Fields) -> str:
    # Checkpoints that do not say are float32 by their format's convention.
    name = fields.get("dtype") or fields.get("torch_dtype") or "float32"
    name = name.removeprefix("torch.") if isinstance(name, str) else name
    if name not in ("bfloat16", "float16", "float32"):
        raise fields.error("dtype", f"{shown(name)} is not one of bfloat16, float16, float32")
    return str(name)
