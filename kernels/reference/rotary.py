"""Rotary position embedding in the half-split layout: the meaning of every faster version.

Source: Su et al., 2021, "RoFormer: Enhanced Transformer with Rotary Position Embedding".
"""

from __future__ import annotations

import torch


def rotary(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate each pair (x[i], x[i + D/2]) of every head by its token's angle i.

    x: [T, H, D]; cos and sin: [T, D/2] f32. Computes in f32, rounds once, returns x's dtype.
    """
    first, second = x.float().chunk(2, dim=-1)
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)  # [T, 1, D/2]
    rotated = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
    return rotated.to(x.dtype)
