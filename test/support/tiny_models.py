"""Small random models of every architecture, made and computed by transformers.

All parameters are random, norms and biases too: a term that is dropped or misplaced shows.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.models.llama import LlamaConfig
from transformers.models.mistral import MistralConfig
from transformers.models.qwen2 import Qwen2Config
from transformers.models.qwen3 import Qwen3Config

VOCAB_SIZE = 128

_BASE: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "eos_token_id": 2,
}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
_LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}

# Name -> (config class, fields that differ from the base).
VARIANTS: dict[str, tuple[Any, dict[str, Any]]] = {
    "llama-gqa": (LlamaConfig, {}),
    "llama-mha": (LlamaConfig, {"num_key_value_heads": 4}),
    "llama-mqa": (LlamaConfig, {"num_key_value_heads": 1}),
    "llama-tied": (LlamaConfig, {"tie_word_embeddings": True}),
    "llama-head-dim": (LlamaConfig, {"head_dim": 32}),
    "llama-llama3-rope": (LlamaConfig, {"rope_parameters": _LLAMA3}),
    "llama-linear-rope": (LlamaConfig, {"rope_parameters": _LINEAR}),
    "llama-biases": (LlamaConfig, {"attention_bias": True, "mlp_bias": True}),
    "mistral": (MistralConfig, {"sliding_window": None}),
    "mistral-wide-window": (MistralConfig, {"sliding_window": 512}),
    "qwen2": (Qwen2Config, {}),
    "qwen2-tied": (Qwen2Config, {"tie_word_embeddings": True}),
    "qwen3": (Qwen3Config, {"head_dim": 32}),
    "qwen3-biases": (Qwen3Config, {"head_dim": 16, "attention_bias": True}),
}


def tiny_model(variant: str, dtype: torch.dtype = torch.float32, **fields: Any) -> PreTrainedModel:
    """A variant as a transformers model; same weights each time, fields replace config fields."""
    config_class, differences = VARIANTS[variant]
    from_config: Any = AutoModelForCausalLM.from_config  # its decorators hide its types
    model: PreTrainedModel = from_config(config_class(**{**_BASE, **differences, **fields})).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            mean = 1.0 if "norm" in name else 0.0
            parameter.copy_(mean + 0.15 * torch.randn(parameter.shape, generator=generator))
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
    return model


def save_tiny_model(folder: Path, variant: str, **fields: Any) -> PreTrainedModel:
    """Write tiny_model(variant) to folder as transformers does, and return it."""
    model = tiny_model(variant, **fields)
    model.save_pretrained(folder)
    return model


def edit_config(folder: Path, **fields: Any) -> None:
    """Replace fields of the folder's config.json; None removes one."""
    file = folder / "config.json"
    config = {**json.loads(file.read_text()), **fields}
    file.write_text(json.dumps({k: v for k, v in config.items() if v is not None}))


def greedy_reference(model: PreTrainedModel, prompt: list[int], num_tokens: int) -> list[int]:
    """What transformers generates greedily after prompt, end-of-sequence ids ignored."""
    ids = list(prompt)
    with torch.inference_mode():
        for _ in range(num_tokens):
            logits = model(torch.tensor([ids]), use_cache=False).logits
            ids.append(int(logits[0, -1].argmax()))
    return ids[len(prompt) :]


def random_prompt(length: int, seed: int) -> list[int]:
    """Token ids of the tiny vocabulary, special ones left out."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, VOCAB_SIZE, (length,), generator=generator).tolist()
