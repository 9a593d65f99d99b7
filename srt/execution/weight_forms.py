"""plan_weight_forms: how the engine keeps each tensor of a model, and the bytes that takes.

Known before any weight is read, so that the KV pool can be sized with it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from ..errors import ConfigError, ModelLoadError
from ..loading.gguf_blocks import BLOCK_LAYOUTS, holds_blocks, read_block_types
from ..loading.model_config import ModelConfig
from ..models.registry import build_model

W8A8 = "w8a8"
_SCALE_BYTES = 4  # one f32 per output of a w8a8 matrix
# The engine has no integer kernel for these and widens them as it packs.
_WIDENED_TO_BF16 = ("Q4_K", "Q6_K")


@dataclass(frozen=True, slots=True)
class WeightForm:
    """One tensor: its shape in the model, and bfloat16, float32, w8a8 or a GGUF block type."""

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
        if self.kind == W8A8:
            return num_values + _SCALE_BYTES * self.shape[0]
        if self.kind in BLOCK_LAYOUTS and self.kind not in _WIDENED_TO_BF16:
            return self.shape[0] * BLOCK_LAYOUTS[self.kind].row_bytes(self.shape[1])
        return num_values * (4 if self.kind == "float32" else 2)


def plan_weight_forms(
    folder: Path, config: ModelConfig, dtype: torch.dtype, quantization: str
) -> dict[str, WeightForm]:
    """The form of every tensor that the model in folder must have, by name.

    Raises ConfigError where folder does not hold what quantization asks for.
    """
    if quantization == "gguf" and not holds_blocks(folder):
        raise ConfigError(
            f"--quantization is gguf, but the weights in {folder} are floats; name a GGUF file in "
            "--model-path, or choose --quantization w8a8 or none"
        )
    if quantization != "gguf" and holds_blocks(folder):
        raise ModelLoadError(
            f"{folder} holds GGUF blocks, and --quantization is {quantization}; set it to gguf, or "
            "name the GGUF file itself in --model-path"
        )
    block_types = read_block_types(folder)
    float_kind = str(dtype).removeprefix("torch.")
    # An empty model of the reference says which tensors there must be, and of which shape.
    forms: dict[str, WeightForm] = {}
    for name, parameter in build_model(config, dtype).parameters().items():
        shape = tuple(parameter.shape)
        kind = block_types.get(name, float_kind)
        if quantization == W8A8 and len(shape) == 2:
            kind = W8A8
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
