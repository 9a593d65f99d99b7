"""Builds the C++ engine's model from a folder: tensor by tensor, with one copy of the weights."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from runtime.kernels.cpu.abi_types import DType, TensorId, WeightFormat
from runtime.kernels.cpu.library import CpuModel, CpuModelConfig

from ..layers.rope_tables import rope_tables
from ..loading.model_config import ModelConfig
from ..loading.stored_weights import stream_weights
from .weight_forms import EIGHT_BIT, WeightForm

_COMPUTE_DTYPES = {"bfloat16": DType.BF16, "float32": DType.F32}
_KV_DTYPES = {**_COMPUTE_DTYPES, "int8": DType.I8}
_LAYER = re.compile(r"model\.layers\.(\d+)\.(.+)")
_MODEL_TENSORS = {
    "model.embed_tokens.weight": TensorId.EMBEDDING,
    "lm_head.weight": TensorId.LM_HEAD,
    "model.norm.weight": TensorId.FINAL_NORM,
}
_LAYER_TENSORS = {
    "input_layernorm.weight": TensorId.ATTN_NORM,
    "self_attn.q_proj.weight": TensorId.Q,
    "self_attn.k_proj.weight": TensorId.K,
    "self_attn.v_proj.weight": TensorId.V,
    "self_attn.q_proj.bias": TensorId.Q_BIAS,
    "self_attn.k_proj.bias": TensorId.K_BIAS,
    "self_attn.v_proj.bias": TensorId.V_BIAS,
    "self_attn.q_norm.weight": TensorId.Q_NORM,
    "self_attn.k_norm.weight": TensorId.K_NORM,
    "self_attn.o_proj.weight": TensorId.O,
    "self_attn.o_proj.bias": TensorId.O_BIAS,
    "post_attention_layernorm.weight": TensorId.MLP_NORM,
    "mlp.gate_proj.weight": TensorId.GATE,
    "mlp.up_proj.weight": TensorId.UP,
    "mlp.down_proj.weight": TensorId.DOWN,
}


def native_serves(config: ModelConfig, dtype: str) -> bool:
    """Whether the engine computes this model in this dtype exactly as the reference means it."""
    return dtype in _COMPUTE_DTYPES and not config.mlp_bias


def load_native_model(
    folder: Path,
    config: ModelConfig,
    dtype: str,
    kv_dtype: str,
    num_threads: int,
    max_positions: int,
    forms: Mapping[str, WeightForm],
) -> CpuModel:
    """Compile or find the engine, and pack the folder's weights into it, each in its form.

    Raises NoCompiler or BuildFailed (runtime.kernels.cpu.build), and ModelLoadError for weights
    that do not match config.
    """
    model = CpuModel(
        CpuModelConfig(
            num_layers=config.num_layers,
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            vocab_size=config.vocab_size,
            max_positions=max_positions,
            rms_eps=config.rms_norm_eps,
            tied_embeddings=config.tie_word_embeddings,
            compute_dtype=_COMPUTE_DTYPES[dtype],
            kv_dtype=_KV_DTYPES[kv_dtype],
            num_threads=num_threads,
        )
    )
    shapes = {name: form.shape for name, form in forms.items()}
    block_types = {name: form.block_type for name, form in forms.items() if form.block_type}
    for name, tensor in stream_weights(folder, shapes, block_types):
        _set_tensor(model, name, tensor, forms[name])
    cos, sin = rope_tables(config.rope, config.head_dim, max_positions)
    model.set_tensor(TensorId.ROPE_COS, cos)
    model.set_tensor(TensorId.ROPE_SIN, sin)
    model.finalize()
    return model


def _set_tensor(model: CpuModel, name: str, tensor: npt.NDArray[Any], form: WeightForm) -> None:
    match = _LAYER.fullmatch(name)
    place = _MODEL_TENSORS[name] if match is None else _LAYER_TENSORS[match[2]]
    layer = -1 if match is None else int(match[1])
    if form.block_type is not None:
        model.set_blocks(place, tensor, DType[form.block_type], form.shape[1], layer)
    elif tensor.ndim == 1:
        model.set_tensor(place, _as_float32(tensor), layer)
    else:
        packing = WeightFormat[form.kind.upper()] if form.kind in EIGHT_BIT else WeightFormat.KEEP
        model.set_tensor(place, tensor, layer, packing)


def _as_float32(values: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    if values.dtype == np.uint16:  # bfloat16 is the upper half of float32
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values.astype(np.float32)
