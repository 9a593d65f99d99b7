"""RotaryAngles: cosines and sines of the rotary embedding for given positions, in torch."""

from __future__ import annotations

import torch

from ..loading.model_config import RopeConfig
from .rope_tables import scaled_frequencies


class RotaryAngles:
    """Computes angles in f32 from positions, so no table bounds the context."""

    def __init__(self, rope: RopeConfig, head_dim: int, device: torch.device) -> None:
        self._frequencies = torch.from_numpy(scaled_frequencies(rope, head_dim)).to(device)

    def __call__(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """cos and sin, each [T, D/2] f32, for positions [T]."""
        angles = positions.float().unsqueeze(1) * self._frequencies
        return angles.cos(), angles.sin()
