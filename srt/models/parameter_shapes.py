"""parameter_shapes: the tensors that a model must have, known without building it or torch."""

from __future__ import annotations

from collections.abc import Iterator

from ..loading.model_config import ModelConfig

Shape = tuple[int, ...]


def parameter_shapes(config: ModelConfig) -> dict[str, Shape]:
    """Checkpoint name -> shape of every parameter of Decoder, in its order."""
    matrix = (config.vocab_size, config.hidden_size)
    shapes: dict[str, Shape] = {"model.embed_tokens.weight": matrix}
    shapes["model.norm.weight"] = (config.hidden_size,)
    if not config.tie_word_embeddings:
        shapes["lm_head.weight"] = matrix
    layer = dict(_layer_shapes(config))
    for index in range(config.num_layers):
        shapes.update((f"model.layers.{index}.{name}", shape) for name, shape in layer.items())
    return shapes


def _layer_shapes(config: ModelConfig) -> Iterator[tuple[str, Shape]]:
    hidden, inner = config.hidden_size, config.intermediate_size
    q_rows = config.num_heads * config.head_dim
    kv_rows = config.num_kv_heads * config.head_dim
    yield "input_layernorm.weight", (hidden,)
    yield "post_attention_layernorm.weight", (hidden,)
    for name, rows in (("q_proj", q_rows), ("k_proj", kv_rows), ("v_proj", kv_rows)):
        yield from _linear(f"self_attn.{name}", rows, hidden, config.attention_bias)
    yield from _linear("self_attn.o_proj", hidden, q_rows, config.attention_output_bias)
    for name in ("gate_proj", "up_proj"):
        yield from _linear(f"mlp.{name}", inner, hidden, config.mlp_bias)
    yield from _linear("mlp.down_proj", hidden, inner, config.mlp_bias)
    if config.qk_norm:
        yield "self_attn.q_norm.weight", (config.head_dim,)
        yield "self_attn.k_norm.weight", (config.head_dim,)


def _linear(name: str, rows: int, cols: int, has_bias: bool) -> Iterator[tuple[str, Shape]]:
    yield f"{name}.weight", (rows, cols)
    if has_bias:
        yield f"{name}.bias", (rows,)
