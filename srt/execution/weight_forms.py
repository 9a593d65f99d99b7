"""plan_weight_forms: how the engine keeps each tensor of a model, and the bytes that takes.

Known before any weight is read, so that the KV pool can be sized with it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..errors import ConfigError, ModelLoadError
from ..loading.gguf_blocks import BLOCK_LAYOUTS, holds_blocks, read_block_types
from ..loading.model_config import ModelConfig
from ..models.parameter_shapes import parameter_shapes

W8A8, W8A16 = "w8a8", "w8a16"
EIGHT_BIT = (W8A8, W8A16)
_SCALE_BYTES = 4  # one f32 per output of an 8-bit matrix


@dataclass(frozen=True, slots=True)
class WeightForm:
    """One tensor: its shape in the model, and bfloat16, float32, w8a8, w8a16 or a GGUF
    block type."""

    shape: tuple[int, ...]
    kind: str

    @property
    def block_type(self) -> str | None:
        """The GGUF block type, or None."""
        return self.kind if self.kind in BLOCK_LAYOUTS else None

    @property
    def num_bytes(self) -> int:
        """Bytes in the engine's memory, without the padding of the last few rows."""
        num_values = math.prod(self.shape)
        if self.kind in EIGHT_BIT:
            return num_values + _SCALE_BYTES * self.shape[0]
        if self.kind in BLOCK_LAYOUTS:
            return self.shape[0] * BLOCK_LAYOUTS[self.kind].row_bytes(self.shape[1])
        return num_values * (4 if self.kind == "float32" else 2)


def plan_weight_forms(
    folder: Path, config: ModelConfig, dtype: str, quantization: str
) -> dict[str, WeightForm]:
    """The form of every tensor that the model in folder must have, by name.

    Raises ConfigError where folder does not hold what quantization asks for.
    """
    if quantization == "gguf" and not holds_blocks(folder):
        raise ConfigError(
            f"--quantization is gguf, but the weights in {folder} are floats; name a GGUF file in "
            "--model-path, or choose --quantization w8a8, w8a16 or none"
        )
    if quantization != "gguf" and holds_blocks(folder):
        raise ModelLoadError(
            f"{folder} holds GGUF blocks, and --quantization is {quantization}; set it to gguf, or "
            "name the GGUF file itself in --model-path"
        )
    block_types = read_block_types(folder)
    forms: dict[str, WeightForm] = {}
    for name, shape in parameter_shapes(config).items():
        kind = block_types.get(name, dtype)
        if quantization in EIGHT_BIT and len(shape) == 2:
            kind = quantization
        forms[name] = WeightForm(shape, kind)
    return forms


def total_bytes(forms: Mapping[str, WeightForm]) -> int:
    """Bytes of all tensors."""
    return sum(form.num_bytes for form in forms.values())


def describe(forms: Mapping[str, WeightForm]) -> str:
    """The forms of the matrices for a log line, most bytes first: Q4_1 + Q8_0, or bfloat16."""
    num_bytes: dict[str, int] = {}
    for form in forms.values():
        if len(form.shape) == 2:
            num_bytes[form.kind] = num_bytes.get(form.kind, 0) + form.num_bytes
    return " + ".join(sorted(num_bytes, key=lambda kind: -num_bytes[kind]))
