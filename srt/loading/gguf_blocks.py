"""GGUF blocks in a converted folder: their types and sizes, and which tensors hold them.

A matrix [N, K] kept as blocks stands in the safetensors as U8 [N, bytes of a row]; one JSON file
beside them maps its name to the type. A folder without that file holds floats only.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..errors import ModelLoadError

BLOCK_TYPES_FILE = "gguf_blocks.json"


@dataclass(frozen=True, slots=True)
class BlockLayout:
    """So many values of one row share a block of so many bytes."""

    num_values: int
    num_bytes: int

    def row_bytes(self, num_cols: int) -> int:
        """Bytes of a row; num_cols is a multiple of num_values."""
        return num_cols // self.num_values * self.num_bytes


# The types that the engine takes as they are; other types are converted.
BLOCK_LAYOUTS: Mapping[str, BlockLayout] = {
    "Q4_0": BlockLayout(32, 18),
    "Q4_1": BlockLayout(32, 20),
    "Q5_0": BlockLayout(32, 22),
    "Q5_1": BlockLayout(32, 24),
    "Q8_0": BlockLayout(32, 34),
    "Q4_K": BlockLayout(256, 144),
    "Q5_K": BlockLayout(256, 176),
    "Q6_K": BlockLayout(256, 210),
}


def holds_blocks(folder: Path) -> bool:
    """Whether the folder was converted from a GGUF file with its blocks kept."""
    return (folder / BLOCK_TYPES_FILE).is_file()


def write_block_types(folder: Path, types: Mapping[str, str]) -> None:
    """Record tensor name -> block type."""
    text = json.dumps(dict(types), indent=1) + "\n"
    (folder / BLOCK_TYPES_FILE).write_text(text, encoding="utf-8")


def read_block_types(folder: Path) -> dict[str, str]:
    """Tensor name -> block type; empty for a folder of floats. Raises ModelLoadError if damaged."""
    if not holds_blocks(folder):
        return {}
    file = folder / BLOCK_TYPES_FILE
    try:
        types = dict(json.loads(file.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise ModelLoadError(f"{file} cannot be read: {error}") from error
    for name, kind in types.items():
        if kind not in BLOCK_LAYOUTS:
            raise ModelLoadError(
                f"{file}: tensor {name} has blocks of type {kind!r}; known are "
                f"{', '.join(BLOCK_LAYOUTS)}"
            )
    return types
