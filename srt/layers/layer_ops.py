"""LayerOps: what a decoder does between its matrix products and its attention.

The seam between plain torch, below, and fused kernels (triton_layer_ops.py). Each operation is what
a kernel does in one pass: a norm takes the addition before it, a rotation the norms of q and k.

Shape letters: T tokens, N width, H query heads, K kv heads, D head_dim, I inner width.
"""

from __future__ import annotations

from typing import Protocol

import torch

from runtime.kernels.reference.rms_norm import rms_norm
from runtime.kernels.reference.rotary import rotary
from runtime.kernels.reference.silu_and_mul import silu_and_mul

from ..loading.model_config import RopeConfig
from .rotary import RotaryAngles


class Rotation(Protocol):
    """Rotates the queries and keys of one step's tokens, in every layer."""

    def __call__(
        self,
        qk: torch.Tensor,
        num_heads: int,
        q_norm: torch.Tensor | None,
        k_norm: torch.Tensor | None,
        eps: float,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """q [T, H, D] and k [T, K, D] from qk [T, H + K, D], which may be changed.

        q_norm and k_norm, [D] both or None both, are applied to every head first.
        """
        ...


class LayerOps(Protocol):
    """One per model. Every operation is done on the device of its arguments."""

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """The norm of x [T, N]."""
        ...

    def add_rms_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> torch.Tensor:
        """Add x to residual, both [T, N], in place, and return the norm of the sum."""
        ...

    def rotation(self, positions: torch.Tensor) -> Rotation:
        """What rotates the tokens at positions [T] int64."""
        ...

    def silu_and_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        """silu(gate) * up [T, I] of gate_up [T, 2 I], the gate first."""
        ...


class TorchLayerOps:
    """LayerOps in plain torch: the meaning of the fused ones."""

    def __init__(self, rope: RopeConfig, head_dim: int, device: torch.device) -> None:
        self._angles = RotaryAngles(rope, head_dim, device)

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        return rms_norm(x, weight, eps)

    def add_rms_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> torch.Tensor:
        return rms_norm(residual.add_(x), weight, eps)

    def rotation(self, positions: torch.Tensor) -> Rotation:
        return _TorchRotation(*self._angles(positions))

    def silu_and_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        return silu_and_mul(gate_up)


class _TorchRotation:
    """cos and sin: [T, D/2] f32."""

    def __init__(self, cos: torch.Tensor, sin: torch.Tensor) -> None:
        self._cos = cos
        self._sin = sin

    def __call__(
        self,
        qk: torch.Tensor,
        num_heads: int,
        q_norm: torch.Tensor | None,
        k_norm: torch.Tensor | None,
        eps: float,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        heads = (num_heads, qk.shape[1] - num_heads)
        if q_norm is not None and k_norm is not None:
            q, k = qk.split_with_sizes(heads, dim=1)
            qk = torch.cat((rms_norm(q, q_norm, eps), rms_norm(k, k_norm, eps)), dim=1)
        q, k = rotary(qk, self._cos, self._sin).split_with_sizes(heads, dim=1)
        return q, k
