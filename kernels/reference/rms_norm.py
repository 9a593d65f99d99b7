"""Root-mean-square normalisation: the meaning of every faster version.

Source: Zhang and Sennrich, 2019, "Root Mean Square Layer Normalization".
"""

from __future__ import annotations

import torch


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Scale x to unit mean square over its last axis, times weight.

    x: [..., N]; weight broadcasts against x. Computes in f32, rounds once, returns x's dtype.
    """
    wide = x.float()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True).add_(eps))
    return (wide * scale).mul_(weight).to(x.dtype)
