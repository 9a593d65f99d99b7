"""write_folder: a GGUF file as a Hugging Face style folder that any tool can load.

Weights are dequantised into one model.safetensors; config, tokenizer and chat template come from
the file's metadata. Nothing is held in memory beyond a few rows at a time.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from .gguf_config import generation_config, model_config
from .gguf_metadata import Metadata, open_gguf
from .gguf_tensors import named_tensors
from .gguf_tokenizer import write_tokenizer
from .safetensors_file import TensorStream, write_safetensors


def write_folder(file: Path, folder: Path, dtype: str) -> None:
    """Convert file into folder, which exists and is empty; dtype: float32, bfloat16 or float16.

    float32 keeps the dequantised values exactly. config.json is written last, so that a folder with
    one is complete. Raises ModelLoadError naming the key or tensor that cannot be converted.
    """
    reader = open_gguf(file)
    metadata = Metadata(reader, str(file))
    config = model_config(reader, metadata, dtype)
    streams = [
        TensorStream(tensor.name, tensor.shape, tensor.float32_chunks())
        for tensor in named_tensors(reader, metadata, config)
    ]
    write_tokenizer(reader, folder)
    write_safetensors(folder / "model.safetensors", streams, dtype)
    _write_json(folder / "generation_config.json", generation_config(metadata))
    _write_json(folder / "config.json", config)


def _write_json(file: Path, content: dict[str, Any]) -> None:
    file.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
