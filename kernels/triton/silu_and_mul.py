"""The gate of a feed-forward layer, times its other half: SwiGLU and GeGLU.

Computed in f32 and rounded once. Source: Shazeer, 2020, "GLU Variants Improve Transformer".
Shape letters: T tokens, I inner width.
"""

from __future__ import annotations

from typing import Literal

import torch
import triton
import triton.language as tl

_BLOCK = 1024
# gelu in its tanh form is x * sigmoid(2 * sqrt(2 / pi) * (x + 0.044715 * x ** 3)).
_GELU_LINEAR = tl.constexpr(1.5957691216057308)
_GELU_CUBIC = tl.constexpr(0.044715)


def silu_and_mul(
    x: torch.Tensor,
    out: torch.Tensor | None = None,
    act: Literal["silu", "gelu_tanh"] = "silu",
) -> torch.Tensor:
    """act(gate) * up, for x [T, 2 I] with the gate first.

    The elements of a row of x and out [T, I] are contiguous; None makes a new out in x's dtype.
    """
    assert x.ndim == 2 and x.shape[1] % 2 == 0, f"x has shape {tuple(x.shape)}"
    assert act in ("silu", "gelu_tanh"), f"act is {act}, not silu or gelu_tanh"
    num_tokens, width = x.shape[0], x.shape[1] // 2
    if out is None:
        out = torch.empty((num_tokens, width), dtype=x.dtype, device=x.device)
    assert out.shape == (num_tokens, width), f"x {tuple(x.shape)}, out {tuple(out.shape)}"
    assert x.stride(1) == out.stride(1) == 1, f"strides of x {x.stride()}, of out {out.stride()}"
    if num_tokens == 0:
        return out
    _gate_and_mul_kernel[(num_tokens, triton.cdiv(width, _BLOCK))](
        x,
        out,
        x.stride(0),
        out.stride(0),
        WIDTH=width,
        BLOCK=_BLOCK,
        IS_GELU=act == "gelu_tanh",
        num_warps=4,
    )
    return out


@triton.jit
def _gate_and_mul_kernel(
    x,
    out,
    x_stride,
    out_stride,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    IS_GELU: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_column = columns < WIDTH
    places = x + row * x_stride + columns
    gate = tl.load(places, mask=is_column, other=0.0).to(tl.float32)
    up = tl.load(places + WIDTH, mask=is_column, other=0.0).to(tl.float32)
    slope = gate
    if IS_GELU:
        # Beyond 20 the sigmoid is 0 or 1, and the cube might overflow.
        near = tl.minimum(tl.maximum(gate, -20.0), 20.0)
        slope = _GELU_LINEAR * near * (1.0 + _GELU_CUBIC * near * near)
    decay = tl.exp(-tl.abs(slope))
    gated = gate * (tl.where(slope < 0.0, decay, 1.0) / (1.0 + decay)) * up
    tl.store(out + row * out_stride + columns, gated.to(out.dtype.element_ty), mask=is_column)
