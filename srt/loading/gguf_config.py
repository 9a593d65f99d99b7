"""config.json and generation_config.json from the metadata and tensor list of a GGUF file."""

from __future__ import annotations

import math
from typing import Any

import gguf
import numpy as np

from .gguf_metadata import Metadata

# GGUF architecture -> the class that computes it. Mistral files call themselves llama: the
# computation is the same.
ARCHITECTURES = {
    "llama": ("LlamaForCausalLM", "llama"),
    "qwen2": ("Qwen2ForCausalLM", "qwen2"),
    "qwen3": ("Qwen3ForCausalLM", "qwen3"),
}

_EOS_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
_SAMPLING_KEYS = {
    "temp": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "penalty_repeat": "repetition_penalty",
}


def model_config(reader: gguf.GGUFReader, metadata: Metadata, dtype: str) -> dict[str, Any]:
    """The fields of config.json. Raises ModelLoadError naming the key that cannot be served."""
    if metadata.architecture not in ARCHITECTURES:
        raise metadata.error(
            "general.architecture",
            f"{metadata.architecture!r} is not served; known are {', '.join(ARCHITECTURES)}",
        )
    if (metadata.get(metadata.own("expert_count")) or 0) > 0:
        raise metadata.error(metadata.own("expert_count"), "mixtures of experts are not served")
    class_name, model_type = ARCHITECTURES[metadata.architecture]
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    if "token_embd.weight" not in tensors:
        raise metadata.error("token_embd.weight", "this tensor is missing")
    num_heads = metadata.scalar_count(metadata.own("attention.head_count"))
    hidden_size = metadata.scalar_count(metadata.own("embedding_length"))
    head_dim = metadata.scalar_count(metadata.own("attention.key_length"), hidden_size // num_heads)
    config: dict[str, Any] = {
        "architectures": [class_name],
        "model_type": model_type,
        "vocab_size": int(tensors["token_embd.weight"].shape[1]),
        "hidden_size": hidden_size,
        "intermediate_size": metadata.scalar_count(metadata.own("feed_forward_length")),
        "num_hidden_layers": metadata.scalar_count(metadata.own("block_count")),
        "num_attention_heads": num_heads,
        "num_key_value_heads": metadata.scalar_count(
            metadata.own("attention.head_count_kv"), num_heads
        ),
        "head_dim": head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": metadata.scalar_count(metadata.own("context_length")),
        "rms_norm_eps": _short_float(
            metadata.positive(metadata.own("attention.layer_norm_rms_epsilon"))
        ),
        "tie_word_embeddings": "output.weight" not in tensors,
        "attention_bias": "blk.0.attn_q.bias" in tensors,
        "mlp_bias": "blk.0.ffn_gate.bias" in tensors,
        "use_sliding_window": False,
        "dtype": dtype,
        **_rope(tensors, metadata, head_dim),
        **_special_ids(metadata),
    }
    return config


def generation_config(metadata: Metadata) -> dict[str, Any]:
    """The fields of generation_config.json: special ids and, where stored, sampling defaults."""
    config: dict[str, Any] = _special_ids(metadata)
    for key, name in _SAMPLING_KEYS.items():
        value = metadata.get(f"general.sampling.{key}")
        if value is not None:
            config["do_sample"] = True
            config[name] = _short_float(value) if isinstance(value, float) else value
    return config


def _special_ids(metadata: Metadata) -> dict[str, Any]:
    ids: dict[str, Any] = {}
    for key, name in (("bos_token_id", "bos_token_id"), ("padding_token_id", "pad_token_id")):
        value = metadata.get(f"tokenizer.ggml.{key}")
        if value is not None:
            ids[name] = int(value)
    found = [metadata.get(f"tokenizer.ggml.{key}") for key in _EOS_KEYS]
    eos_ids = sorted({int(value) for value in found if value is not None})
    if eos_ids:
        ids["eos_token_id"] = eos_ids[0] if len(eos_ids) == 1 else eos_ids
    return ids


def _rope(
    tensors: dict[str, gguf.ReaderTensor], metadata: Metadata, head_dim: int
) -> dict[str, Any]:
    rotated = metadata.scalar_count(metadata.own("rope.dimension_count"), head_dim)
    if rotated != head_dim:
        raise metadata.error(
            metadata.own("rope.dimension_count"),
            f"it is {rotated}, but heads have {head_dim}; partial rotary embedding is not served",
        )
    theta = metadata.positive(metadata.own("rope.freq_base"), 10000.0)
    rope: dict[str, Any] = {"rope_theta": _short_float(theta)}
    if "rope_freqs.weight" in tensors:
        factors = np.asarray(tensors["rope_freqs.weight"].data, dtype=np.float32).reshape(-1)
        rope["rope_scaling"] = _llama3_scaling(factors, theta, head_dim, metadata)
        return rope
    kind = metadata.get(metadata.own("rope.scaling.type")) or "none"
    if kind == "linear":
        factor = metadata.positive(metadata.own("rope.scaling.factor"))
        rope["rope_scaling"] = {"rope_type": "linear", "factor": _short_float(factor)}
    elif kind != "none":
        raise metadata.error(
            metadata.own("rope.scaling.type"), f"{kind!r} is not served; known are none and linear"
        )
    return rope


def _llama3_scaling(
    factors: np.ndarray[Any, Any], theta: float, head_dim: int, metadata: Metadata
) -> dict[str, Any]:
    """Recover the parameters whose per-frequency factors the file stores instead of them."""
    low, high, original = 1.0, 4.0, 8192  # those of every published model of this kind
    factor = float(factors.max()) if factors.size else 0.0
    frequencies = theta ** (-np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    wavelengths = 2 * math.pi / frequencies
    smooth = np.clip((original / wavelengths - low) / (high - low), 0.0, 1.0)
    expected = 1.0 / ((1 - smooth) / max(factor, 1e-9) + smooth)
    if factors.shape != expected.shape or not np.allclose(factors, expected, rtol=1e-4):
        raise metadata.error(
            "rope_freqs.weight", "these frequency factors are not those of llama3 rope scaling"
        )
    return {
        "rope_type": "llama3",
        "factor": _short_float(factor),
        "low_freq_factor": low,
        "high_freq_factor": high,
        "original_max_position_embeddings": original,
    }


def _short_float(value: float) -> float:
    """The shortest decimal that is the same float32: metadata stores 1e-05 as 9.99999974e-06."""
    return float(str(np.float32(value)))
