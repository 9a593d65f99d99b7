"""RotaryAngles: cosines and sines of the rotary embedding for given positions, with its scalings.

Sources: RoFormer (Su et al., 2021); linear scaling (Chen et al., 2023, "Extending Context Window of
Large Language Models via Positional Interpolation"); llama3 scaling (Llama 3.1 model description).
"""

from __future__ import annotations

import math

import torch

from ..loading.model_config import RopeConfig


class RotaryAngles:
    """Computes angles in f32 from positions, so no table bounds the context."""

    def __init__(self, rope: RopeConfig, head_dim: int, device: torch.device) -> None:
        self._frequencies = scaled_frequencies(rope, head_dim).to(device)

    def __call__(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """cos and sin, each [T, D/2] f32, for positions [T]."""
        angles = positions.float().unsqueeze(1) * self._frequencies
        return angles.cos(), angles.sin()


def scaled_frequencies(rope: RopeConfig, head_dim: int) -> torch.Tensor:
    """Angle per position of each pair, [D/2] f32."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    frequencies = 1.0 / (rope.theta**exponents)
    if rope.kind == "linear":
        return frequencies / rope.factor
    if rope.kind == "llama3":
        return _llama3_scaled(frequencies, rope)
    return frequencies


def _llama3_scaled(frequencies: torch.Tensor, rope: RopeConfig) -> torch.Tensor:
    """Keep short wavelengths, divide long ones by the factor, blend in between."""
    turns = rope.original_context_length * frequencies / (2 * math.pi)
    share_kept = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    share_kept = share_kept.clamp(0.0, 1.0)
    return frequencies * ((1.0 - share_kept) / rope.factor + share_kept)
