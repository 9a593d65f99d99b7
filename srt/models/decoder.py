"""Decoder: the transformer that Llama, Mistral, Qwen2 and Qwen3 share.

They differ only in what ModelConfig says: biases, q and k norms, tied embeddings, rope scaling.

q, k and v are one matrix product, gate and up another. parameters() gives the loader each
checkpoint tensor's place, so that weights are read straight into the stacked matrices.

Shape letters: T tokens, R rows to score, H query heads, K kv heads, D head_dim, V vocabulary.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from ..attention.backend import AttentionBackend
from ..attention.tensor_batch import TensorBatch
from ..layers.layer_ops import LayerOps, Rotation, TorchLayerOps
from ..layers.linear import Linear
from ..loading.model_config import ModelConfig
from ..memory.kv_pool import KvPool

Parameters = dict[str, torch.Tensor]


class Decoder:
    """A causal language model with uninitialised weights in dtype, on torch's default device.

    ops None: plain torch.
    """

    def __init__(
        self, config: ModelConfig, dtype: torch.dtype, ops: LayerOps | None = None
    ) -> None:
        self.config = config
        self.dtype = dtype
        self.embed_tokens = torch.empty(config.vocab_size, config.hidden_size, dtype=dtype)
        self.layers = [DecoderLayer(config, index, dtype) for index in range(config.num_layers)]
        self.norm = torch.empty(config.hidden_size, dtype=dtype)
        self.lm_head = (
            self.embed_tokens
            if config.tie_word_embeddings
            else torch.empty(config.vocab_size, config.hidden_size, dtype=dtype)
        )
        self._ops = ops or TorchLayerOps(config.rope, config.head_dim, self.norm.device)

    def parameters(self) -> Parameters:
        """Checkpoint name -> the tensor to fill, a contiguous view into the model's own memory."""
        found = {"model.embed_tokens.weight": self.embed_tokens, "model.norm.weight": self.norm}
        if not self.config.tie_word_embeddings:
            found["lm_head.weight"] = self.lm_head
        for index, layer in enumerate(self.layers):
            for name, tensor in layer.parameters().items():
                found[f"model.layers.{index}.{name}"] = tensor
        return found

    def forward(
        self, batch: TensorBatch, kv_pool: KvPool, attention: AttentionBackend
    ) -> torch.Tensor:
        """Final hidden states [T, hidden] after the last norm; writes K and V of the new tokens."""
        attention.prepare(batch)
        ops, eps = self._ops, self.config.rms_norm_eps
        rotation = ops.rotation(batch.positions)
        # What a layer adds last is added by the norm of the next one.
        residual = F.embedding(batch.input_ids, self.embed_tokens)
        normed = ops.rms_norm(residual, self.layers[0].input_norm, eps)
        following = [layer.input_norm for layer in self.layers[1:]] + [self.norm]
        for layer, norm in zip(self.layers, following, strict=True):
            added = layer.forward(normed, residual, rotation, batch, kv_pool, attention, ops)
            normed = ops.add_rms_norm(added, residual, norm, eps)
        return normed

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[R, hidden] -> [R, V] f32."""
        return F.linear(hidden, self.lm_head).float()


class DecoderLayer:
    """Attention and feed-forward, each behind a norm and added to the residual stream."""

    def __init__(self, config: ModelConfig, index: int, dtype: torch.dtype) -> None:
        self.config = config
        self.index = index
        hidden, head_dim = config.hidden_size, config.head_dim
        num_stacked = config.num_heads + 2 * config.num_kv_heads
        self.input_norm = torch.empty(hidden, dtype=dtype)
        self.post_attention_norm = torch.empty(hidden, dtype=dtype)
        self.qkv = Linear(hidden, num_stacked * head_dim, config.attention_bias, dtype)
        self.o = Linear(config.num_heads * head_dim, hidden, config.attention_output_bias, dtype)
        self.gate_up = Linear(hidden, 2 * config.intermediate_size, config.mlp_bias, dtype)
        self.down = Linear(config.intermediate_size, hidden, config.mlp_bias, dtype)
        self.q_norm = torch.empty(head_dim, dtype=dtype) if config.qk_norm else None
        self.k_norm = torch.empty(head_dim, dtype=dtype) if config.qk_norm else None

    def parameters(self) -> Parameters:
        """Checkpoint name within the layer -> the tensor to fill."""
        config = self.config
        kv_rows = config.num_kv_heads * config.head_dim
        qkv_rows = (config.num_heads * config.head_dim, kv_rows, kv_rows)
        mlp_rows = (config.intermediate_size, config.intermediate_size)
        found = {
            "input_layernorm.weight": self.input_norm,
            "post_attention_layernorm.weight": self.post_attention_norm,
        }
        _add_linear(
            found, self.qkv, ["self_attn." + x for x in ("q_proj", "k_proj", "v_proj")], qkv_rows
        )
        _add_linear(found, self.o, ["self_attn.o_proj"], (config.hidden_size,))
        _add_linear(found, self.gate_up, ["mlp.gate_proj", "mlp.up_proj"], mlp_rows)
        _add_linear(found, self.down, ["mlp.down_proj"], (config.hidden_size,))
        if self.q_norm is not None and self.k_norm is not None:
            found["self_attn.q_norm.weight"] = self.q_norm
            found["self_attn.k_norm.weight"] = self.k_norm
        return found

    def forward(
        self,
        normed: torch.Tensor,
        residual: torch.Tensor,
        rotation: Rotation,
        batch: TensorBatch,
        kv_pool: KvPool,
        attention: AttentionBackend,
        ops: LayerOps,
    ) -> torch.Tensor:
        """[T, hidden], to be added to residual, for normed [T, hidden], residual's norm.

        Adds the attention to residual in place.
        """
        q, k, v = self._rotated_qkv(normed, rotation)
        attended = attention.forward(q, k, v, self.index, kv_pool, batch)  # [T, H, D]
        eps = self.config.rms_norm_eps
        added = self.o(attended.flatten(1))
        normed = ops.add_rms_norm(added, residual, self.post_attention_norm, eps)
        return self.down(ops.silu_and_mul(self.gate_up(normed)))

    def _rotated_qkv(
        self, normed: torch.Tensor, rotation: Rotation
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        num_heads, num_kv_heads = self.config.num_heads, self.config.num_kv_heads
        qkv = self.qkv(normed)
        qkv = qkv.view(len(qkv), -1, self.config.head_dim)  # [T, H + 2K, D]
        qk, v = qkv.split_with_sizes((num_heads + num_kv_heads, num_kv_heads), dim=1)
        q, k = rotation(qk, num_heads, self.q_norm, self.k_norm, self.config.rms_norm_eps)
        return q, k, v


def _add_linear(
    found: Parameters, linear: Linear, names: list[str], num_rows: tuple[int, ...]
) -> None:
    for name, weight in zip(names, linear.weight.split_with_sizes(num_rows), strict=True):
        found[f"{name}.weight"] = weight
    if linear.bias is not None:
        for name, bias in zip(names, linear.bias.split_with_sizes(num_rows), strict=True):
            found[f"{name}.bias"] = bias
