"""GGUF files made from small transformers models, as the usual converters lay them out."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from transformers import PreTrainedModel

_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def write_gguf(
    file: Path,
    model: PreTrainedModel,
    architecture: str = "llama",
    quantization: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    metadata: dict[str, Any] | None = None,
    without: tuple[str, ...] = (),
    extra_tensors: dict[str, np.ndarray[Any, Any]] | None = None,
    raw_tensors: dict[str, tuple[np.ndarray[Any, Any], gguf.GGMLQuantizationType]] | None = None,
) -> None:
    """Write model to file: matrices quantised, vectors as F32, a small vocabulary.

    metadata adds or replaces keys (int, float or str); without names tensors to leave out;
    raw_tensors are quantised already.
    """
    writer = gguf.GGUFWriter(file, architecture)
    adders: dict[type, Any] = {
        int: writer.add_uint32,
        float: writer.add_float32,
        str: writer.add_string,
    }
    for key, value in {**_metadata(model, architecture), **(metadata or {})}.items():
        adders[type(value)](key, value)
    _add_vocabulary(writer, model.config.vocab_size)
    for name, parameter in model.state_dict().items():
        new_name = _gguf_name(name)
        if new_name in without or (name == "lm_head.weight" and model.config.tie_word_embeddings):
            continue
        values = parameter.float()
        if architecture == "llama" and re.search(r"\.(q|k)_proj\.", name):
            values = _interleaved(values, model.config.head_dim)
        array = np.ascontiguousarray(values.numpy())
        if array.ndim == 1:
            writer.add_tensor(new_name, array)
        else:
            data = gguf.quants.quantize(array, quantization)
            writer.add_tensor(new_name, data, raw_dtype=quantization)
    for name, array in (extra_tensors or {}).items():
        writer.add_tensor(name, array)
    for name, (data, raw_type) in (raw_tensors or {}).items():
        writer.add_tensor(name, data, raw_dtype=raw_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def k_quant_blocks(
    num_rows: int, num_cols: int, kind: gguf.GGMLQuantizationType, seed: int
) -> np.ndarray[Any, Any]:
    """Random blocks [num_rows, bytes of a row], for the types the gguf package cannot write.

    Scales are such that the values stand around 0 with a deviation near 0.06.
    """
    generator = np.random.default_rng(seed)
    values, size = gguf.GGML_QUANT_SIZES[kind]
    shape = (num_rows, num_cols // values, size)
    blocks = generator.integers(0, 256, shape, dtype=np.uint8)
    if kind in (gguf.GGMLQuantizationType.Q4_K, gguf.GGMLQuantizationType.Q5_K):
        # value = d * scale * q - dmin * min, with scale and min in 0..63 and q in 0..15 or 0..31
        five_bits = kind == gguf.GGMLQuantizationType.Q5_K
        blocks[..., 0:2] = _f16_bytes(0.00012 if five_bits else 0.00024)
        blocks[..., 2:4] = _f16_bytes(0.0018)
    else:
        assert kind == gguf.GGMLQuantizationType.Q6_K, kind
        # value = d * scale * (q - 32), with scale in -128..127 and q in 0..63
        blocks[..., 208:210] = _f16_bytes(0.00004)
    return blocks.reshape(num_rows, -1)


def _f16_bytes(value: float) -> np.ndarray[Any, Any]:
    return np.frombuffer(np.float16(value).tobytes(), dtype=np.uint8)


def _metadata(model: PreTrainedModel, architecture: str) -> dict[str, Any]:
    config = model.config
    own = {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "rope.freq_base": config.rope_parameters["rope_theta"],
    }
    if (head_dim := getattr(config, "head_dim", None)) is not None:
        own["attention.key_length"] = head_dim
    named: dict[str, Any] = {f"{architecture}.{name}": value for name, value in own.items()}
    return {
        **named,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }


def _add_vocabulary(writer: gguf.GGUFWriter, size: int) -> None:
    specials = ["<unk>", "<s>", "</s>"]
    # Printable characters stand for themselves in byte-level vocabularies.
    pieces = [chr(code) for code in range(33, 127)]
    pieces += [f"{a}{b}" for a in "abcdef" for b in "ghijklmnop"]
    merges = [f"{piece[0]} {piece[1]}" for piece in pieces if len(piece) == 2]
    tokens = (specials + pieces)[:size]
    writer.add_token_list(tokens)
    control, normal = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
    writer.add_token_types([control if t in specials else normal for t in tokens])
    writer.add_token_merges([merge for merge in merges if merge.replace(" ", "") in tokens])


def _gguf_name(name: str) -> str:
    stem, kind = name.rsplit(".", 1)
    if layer := re.fullmatch(r"model\.layers\.(\d+)\.(.+)", stem):
        return f"blk.{layer[1]}.{_NAMES[layer[2]]}.{kind}"
    return f"{_NAMES[stem]}.{kind}"


def _interleaved(values: torch.Tensor, head_dim: int) -> torch.Tensor:
    """Put the two halves of each head's rows alternately, as llama files have them."""
    heads = values.reshape(-1, head_dim, *values.shape[1:])
    first, second = heads[:, : head_dim // 2], heads[:, head_dim // 2 :]
    return torch.stack((first, second), dim=2).reshape(values.shape)
