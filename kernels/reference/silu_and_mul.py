"""The gate of a SwiGLU feed-forward layer: the meaning of every faster version.

Source: Shazeer, 2020, "GLU Variants Improve Transformer".
"""

from __future__ import annotations

import torch
import torch.nn.functional as F


def silu_and_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """Return silu(gate) * up: [T, N], for gate_up: [T, 2N] with gate in the first half."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate).mul_(up)
