"""The gate of a feed-forward layer against float64, interpreted."""

from __future__ import annotations

import math
from typing import Literal

import pytest
import torch
from support.guarded_tensors import GuardedOutput, guarded

from runtime.kernels.triton.silu_and_mul import silu_and_mul


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("act", ["silu", "gelu_tanh"])
@pytest.mark.parametrize("shape", [(1, 1), (3, 96), (2, 1024), (4, 1536), (1, 2051)])
def test_the_first_half_gates_the_second(
    shape: tuple[int, int], act: Literal["silu", "gelu_tanh"], dtype: torch.dtype
) -> None:
    num_tokens, width = shape
    x = guarded(3 * torch.randn(num_tokens, 2 * width).to(dtype))
    out = GuardedOutput.empty(shape, dtype)

    assert silu_and_mul(x, out=out.tensor, act=act) is out.tensor

    gate, up = x.double().chunk(2, dim=-1)
    _assert_close(out.tensor, _activation(gate, act) * up)
    out.assert_guards_hold()


@pytest.mark.parametrize("act", ["silu", "gelu_tanh"])
def test_extreme_gates_open_or_close(act: Literal["silu", "gelu_tanh"]) -> None:
    gate = torch.tensor([[-1e30, -1000.0, -0.0, 0.0, 1e-30, 1000.0, 1e30]])

    gated = silu_and_mul(torch.cat([gate, torch.ones_like(gate)], dim=1), act=act)

    expected = torch.tensor([[0.0, 0.0, 0.0, 0.0, 5e-31, 1000.0, 1e30]])
    torch.testing.assert_close(gated, expected, rtol=1e-6, atol=0)


def test_rows_may_lie_apart() -> None:
    matrix = torch.randn(3, 500)
    x = matrix[:, 100:300]

    gated = silu_and_mul(x)

    assert gated.is_contiguous()
    gate, up = x.double().chunk(2, dim=-1)
    _assert_close(gated, _activation(gate, "silu") * up)


def test_no_tokens_give_no_tokens() -> None:
    assert silu_and_mul(torch.empty(0, 8)).shape == (0, 4)


def _activation(gate: torch.Tensor, act: str) -> torch.Tensor:
    if act == "silu":
        return gate / (1 + torch.exp(-gate))
    inner = math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)
    return 0.5 * gate * (1 + torch.tanh(inner))


def _assert_close(found: torch.Tensor, expected: torch.Tensor) -> None:
    # One rounding to the dtype, and a few of f32 before it; exp(-x) is off by x units.
    rtol = 2**-18 if found.dtype == torch.float32 else 2**-10
    torch.testing.assert_close(found.double(), expected, rtol=rtol, atol=1e-6)
