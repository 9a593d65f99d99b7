"""write_folder: a GGUF file as a Hugging Face style folder that any tool can load.

Weights go to one model.safetensors, dequantised or as the blocks they are; config, tokenizer and
chat template come from the file's metadata. A few rows are held in memory at a time.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from .gguf_blocks import BLOCK_LAYOUTS, write_block_types
from .gguf_config import generation_config, model_config
from .gguf_metadata import Metadata, open_gguf
from .gguf_tensors import NamedTensor, named_tensors
from .gguf_tokenizer import write_tokenizer
from .safetensors_file import TensorStream, write_safetensors

# Two matrices that the engine multiplies in one pass, which takes one format for both.
_GATE, _UP = "mlp.gate_proj.weight", "mlp.up_proj.weight"


def write_folder(file: Path, folder: Path, dtype: str, keep_blocks: bool = False) -> None:
    """Convert file into folder, which exists and is empty; dtype: float32, bfloat16 or float16.

    float32 keeps the dequantised values exactly. keep_blocks: matrices of the types in
    BLOCK_LAYOUTS stay the blocks they are, vectors become float32, and dtype is that of the other
    matrices; only our own engine loads such a folder. config.json is written last, so that a folder
    with one is complete. Raises ModelLoadError naming the key or tensor that cannot be converted.
    """
    reader = open_gguf(file)
    metadata = Metadata(reader, str(file))
    config = model_config(reader, metadata, dtype)
    tensors = named_tensors(reader, metadata, config)
    write_tokenizer(reader, folder)
    if keep_blocks:
        types = _kept_types(tensors)
        streams = [_kept_stream(tensor, types, dtype) for tensor in tensors]
        write_block_types(folder, types)
    else:
        streams = [
            TensorStream(one.name, one.shape, dtype, one.float32_chunks()) for one in tensors
        ]
    write_safetensors(folder / "model.safetensors", streams)
    _write_json(folder / "generation_config.json", generation_config(metadata))
    _write_json(folder / "config.json", config)


def _kept_types(tensors: list[NamedTensor]) -> dict[str, str]:
    types = {one.name: one.source.tensor_type.name for one in tensors if len(one.shape) == 2}
    kept = {name: kind for name, kind in types.items() if kind in BLOCK_LAYOUTS}
    for gate in [name for name in types if name.endswith(_GATE)]:
        up = gate.replace(_GATE, _UP)
        if kept.get(gate) != kept.get(up):
            kept.pop(gate, None)
            kept.pop(up, None)
    return kept


def _kept_stream(tensor: NamedTensor, types: dict[str, str], dtype: str) -> TensorStream:
    if len(tensor.shape) == 1:
        return TensorStream(tensor.name, tensor.shape, "float32", tensor.float32_chunks())
    if tensor.name not in types:
        return TensorStream(tensor.name, tensor.shape, dtype, tensor.float32_chunks())
    rows, cols = tensor.shape
    row_bytes = BLOCK_LAYOUTS[types[tensor.name]].row_bytes(cols)
    return TensorStream(tensor.name, (rows, row_bytes), "uint8", tensor.block_chunks())


def _write_json(file: Path, content: dict[str, Any]) -> None:
    file.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
