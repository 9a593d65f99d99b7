"""What a case must read and compute at least, from the model's shape: the base of every share.

Counted are the weights, once for each pass, keys and values, and the multiplications of the linear
layers and of attention. What an engine reads or computes besides lowers its share, as it should.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from .cases import Workload

KV_BYTES = 2  # bfloat16


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The sizes that decide the work of a Llama-like decoder."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int

    @classmethod
    def from_config(cls, config_file: Path) -> ModelShape:
        """Read the sizes from a Hugging Face config.json."""
        config = json.loads(config_file.read_text(encoding="utf-8"))
        heads = config["num_attention_heads"]
        return cls(
            hidden=config["hidden_size"],
            intermediate=config["intermediate_size"],
            layers=config["num_hidden_layers"],
            heads=heads,
            kv_heads=config.get("num_key_value_heads", heads),
            head_dim=config.get("head_dim") or config["hidden_size"] // heads,
            vocabulary=config["vocab_size"],
        )

    @property
    def layer_weights(self) -> int:
        """Weights of all layers' linear maps."""
        attention = self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        return self.layers * (attention + 3 * self.hidden * self.intermediate)

    @property
    def head_weights(self) -> int:
        """Weights of the map from hidden states to the vocabulary."""
        return self.hidden * self.vocabulary

    @property
    def kv_bytes_per_token(self) -> int:
        """Keys and values of one token in all layers, in bfloat16."""
        return 2 * self.layers * self.kv_heads * self.head_dim * KV_BYTES


def decode_bytes(shape: ModelShape, workload: Workload, weight_bytes: float) -> float:
    """Return the bytes that one step of a single stream reads, on average over its output."""
    context = (workload.prompt_tokens or 0) + workload.max_tokens / 2
    return weight_bytes + context * shape.kv_bytes_per_token


def total_flops(shape: ModelShape, workload: Workload) -> float:
    """Return the floating-point operations of a workload whose shared prefix is cached.

    Only the last position of a prompt goes through the vocabulary's map. Raises ValueError for
    workloads whose token counts are not known before the run.
    """
    if workload.prompt_tokens is None:
        raise ValueError(f"case {workload.case} has no fixed number of prompt tokens")
    first = workload.shared_prefix_tokens
    last = workload.prompt_tokens + workload.max_tokens - 1  # the last output is not computed on
    positions = last - first
    linear = 2 * positions * shape.layer_weights
    # Each position attends to itself and all before it, once for scores and once for values.
    pairs = (first + 1 + last) * positions / 2
    attention = 4 * pairs * shape.layers * shape.heads * shape.head_dim
    head = 2 * workload.max_tokens * shape.head_weights
    return len(workload.prompts) * (linear + attention + head)
