"""triton_draw: the Draw that is one kernel for all rows; see runtime.kernels.triton.sampling."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from runtime.kernels.kernel_modules import kernel_module

from .device_draw import Draw, DrawParams
from .forward_batch import SampleRow


def load_triton_draw() -> Draw:
    """Raises KernelsMissing."""
    sampling = kernel_module("sampling")

    def draw(
        logits: torch.Tensor,
        params: DrawParams,
        rows: Sequence[SampleRow],
        floor: float = -math.inf,
    ) -> torch.Tensor:
        tensors = sampling.SamplingTensors(
            temperature=params.temperature,
            top_k=params.top_k,
            top_p=params.top_p,
            min_p=params.min_p,
            seed=params.seed,
            position=params.position,
        )
        drawn = sampling.sample(logits, tensors, floor=floor)
        ids: torch.Tensor = torch.where(drawn.has_nan, -1, drawn.ids)
        return ids

    return draw
