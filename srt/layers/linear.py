"""Linear: a weight with an optional bias; its rows may be several checkpoint tensors, stacked."""

from __future__ import annotations

import torch
import torch.nn.functional as F


class Linear:
    """y = x W^T + b. Weight and bias are left uninitialised, for the loader to fill."""

    def __init__(self, in_features: int, out_features: int, bias: bool, dtype: torch.dtype) -> None:
        self.weight = torch.empty(out_features, in_features, dtype=dtype)
        self.bias = torch.empty(out_features, dtype=dtype) if bias else None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[T, in_features] -> [T, out_features]."""
        return F.linear(x, self.weight, self.bias)
