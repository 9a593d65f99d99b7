"""Architecture name -> the class that computes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from ..errors import ModelLoadError
from ..layers.layer_ops import LayerOps
from ..loading.model_config import ModelConfig
from .causal_lm import CausalLM
from .decoder import Decoder

MODELS: Mapping[str, Callable[[ModelConfig, torch.dtype, LayerOps | None], CausalLM]] = {
    "LlamaForCausalLM": Decoder,
    "MistralForCausalLM": Decoder,
    "Qwen2ForCausalLM": Decoder,
    "Qwen3ForCausalLM": Decoder,
}


def build_model(config: ModelConfig, dtype: torch.dtype, ops: LayerOps | None = None) -> CausalLM:
    """A model with uninitialised weights on torch's default device; ops None: plain torch.

    Raises ModelLoadError for an unknown architecture.
    """
    try:
        return MODELS[config.architecture](config, dtype, ops)
    except KeyError:
        raise ModelLoadError(
            f"architecture {config.architecture} is not served; known are {', '.join(MODELS)}"
        ) from None
