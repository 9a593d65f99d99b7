"""GGUF tensors under their Hugging Face names, row order and values.

Values are dequantised a few rows at a time, so that memory stays small whatever the file's size.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import gguf
import numpy as np

from ..errors import ModelLoadError
from .gguf_metadata import Metadata

_TOP_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
# Read elsewhere (rope_freqs becomes rope_scaling) or derived from the config by everyone.
_NOT_WEIGHTS = re.compile(r"rope_freqs\.weight|blk\.\d+\.attn_rot_embd\.weight")
_LAYER_TENSOR = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")
_CHUNK_VALUES = 1 << 21  # 8 MiB of float32 at a time


@dataclass(frozen=True, slots=True)
class NamedTensor:
    """One tensor to write: its new name and shape, and the order its rows are taken in."""

    name: str
    shape: tuple[int, ...]
    source: gguf.ReaderTensor
    row_order: np.ndarray[Any, Any] | None

    def float32_chunks(self) -> Iterator[np.ndarray[Any, Any]]:
        """Its values in order, as flat float32 arrays.

        Raises ModelLoadError naming tensor and type where the type cannot be dequantised.
        """
        if len(self.shape) == 1:
            values = self._dequantized(self.source.data.reshape(1, -1)).reshape(-1)
            yield values if self.row_order is None else values[self.row_order]
            return
        rows = self.source.data.reshape(-1, self.source.data.shape[-1])
        step = max(1, _CHUNK_VALUES // self.shape[-1])
        for start in range(0, rows.shape[0], step):
            if self.row_order is None:
                chunk = rows[start : start + step]
            else:
                chunk = rows[self.row_order[start : start + step]]
            yield self._dequantized(chunk).reshape(-1)

    def block_chunks(self) -> Iterator[np.ndarray[Any, Any]]:
        """The bytes of its rows as they stand in the file, in its row order, as flat arrays.

        Blocks never span rows, so rows change places whole. Only for a matrix of block type.
        """
        rows = self.source.data.view(np.uint8).reshape(self.shape[0], -1)
        step = max(1, _CHUNK_VALUES // self.shape[-1])
        for start in range(0, rows.shape[0], step):
            if self.row_order is None:
                yield rows[start : start + step].reshape(-1)
            else:
                yield rows[self.row_order[start : start + step]].reshape(-1)

    def _dequantized(self, rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        try:
            values = gguf.quants.dequantize(rows, self.source.tensor_type)
        except NotImplementedError:
            raise ModelLoadError(
                f"tensor {self.source.name} has type {self.source.tensor_type.name}, which the "
                "gguf package cannot dequantise; use a file with F16, Q8_0 or K-quant tensors"
            ) from None
        return np.ascontiguousarray(values, dtype=np.float32)


def named_tensors(
    reader: gguf.GGUFReader, metadata: Metadata, config: dict[str, Any]
) -> list[NamedTensor]:
    """Every weight of the file. Raises ModelLoadError naming a tensor that has no place."""
    named = []
    for tensor in reader.tensors:
        if _NOT_WEIGHTS.fullmatch(tensor.name):
            continue
        order = None
        if metadata.architecture == "llama":
            order = _half_split_order(tensor.name, config)
        shape = tuple(int(size) for size in reversed(tensor.shape))
        if order is not None and len(order) != shape[0]:
            raise metadata.error(
                tensor.name, f"it has {shape[0]} rows where heads and their size give {len(order)}"
            )
        named.append(NamedTensor(_new_name(tensor.name, metadata), shape, tensor, order))
    return named


def _new_name(name: str, metadata: Metadata) -> str:
    if name in _TOP_NAMES:
        return _TOP_NAMES[name]
    match = _LAYER_TENSOR.fullmatch(name)
    if match is None or match[2] not in _LAYER_NAMES:
        raise metadata.error(
            name, f"this tensor has no place in the {metadata.architecture} architecture"
        )
    return f"model.layers.{match[1]}.{_LAYER_NAMES[match[2]]}.{match[3]}"


def _half_split_order(name: str, config: dict[str, Any]) -> np.ndarray[Any, Any] | None:
    """Undo the interleaving of rotary pairs that llama files apply to q and k rows.

    They store a head's row 2i + j where the half-split layout has row j * head_dim / 2 + i.
    """
    match = _LAYER_TENSOR.fullmatch(name)
    if match is None or match[2] not in ("attn_q", "attn_k"):
        return None
    heads = config["num_attention_heads" if match[2] == "attn_q" else "num_key_value_heads"]
    head_dim = config["head_dim"]
    rows = np.arange(heads * head_dim).reshape(heads, head_dim // 2, 2)
    return rows.swapaxes(1, 2).reshape(-1)
