"""TritonLayerOps: LayerOps as fused kernels; for NVIDIA GPUs. See runtime.kernels.triton."""

from __future__ import annotations

import numpy as np
import torch

from runtime.kernels.kernel_modules import kernel_module

from ..loading.model_config import RopeConfig
from .layer_ops import Rotation
from .rope_tables import rope_tables


class TritonLayerOps:
    """Positions up to max_positions have their angles in a table on device."""

    def __init__(
        self, rope: RopeConfig, head_dim: int, max_positions: int, device: torch.device
    ) -> None:
        self._norms = kernel_module("rms_norm")
        self._rotary = kernel_module("rotary")
        self._activation = kernel_module("silu_and_mul")
        table = np.concatenate(rope_tables(rope, head_dim, max_positions), axis=1)
        self._cos_sin = torch.from_numpy(table).to(device)  # [P, D] f32

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        normed: torch.Tensor = self._norms.rms_norm(x, weight, eps)
        return normed

    def add_rms_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> torch.Tensor:
        normed: torch.Tensor = self._norms.add_rms_norm(x, residual, weight, eps)
        return normed

    def rotation(self, positions: torch.Tensor) -> Rotation:
        def rotate(
            qk: torch.Tensor,
            num_heads: int,
            q_norm: torch.Tensor | None,
            k_norm: torch.Tensor | None,
            eps: float,
        ) -> tuple[torch.Tensor, torch.Tensor]:
            q, k = qk.split_with_sizes((num_heads, qk.shape[1] - num_heads), dim=1)
            self._rotary.rotary(
                q, k, positions, self._cos_sin, q_norm=q_norm, k_norm=k_norm, eps=eps
            )
            return q, k

        return rotate

    def silu_and_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        gated: torch.Tensor = self._activation.silu_and_mul(gate_up)
        return gated
