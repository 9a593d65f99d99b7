"""Root-mean-square normalisation of rows, alone or with the residual addition before it.

Computed in f32 and rounded once. Source: Zhang and Sennrich, 2019, "Root Mean Square Layer
Normalization". Shape letters: T tokens, N width.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

MAX_WIDTH = 16384  # a row is held in the registers of one program
_ELEMENTS_PER_WARP = 512


def rms_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    out: torch.Tensor | None = None,
    weight_offset: float = 0.0,
) -> torch.Tensor:
    """Scale every row of x to unit mean square, times weight + weight_offset.

    x and out: [T, N], the elements of a row contiguous; out may be x itself, None makes a new one
    in x's dtype. weight: [N].
    """
    _check_rows(x, weight)
    if out is None:
        out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    assert out.shape == x.shape and out.stride(1) == 1, f"out {out.shape}, {out.stride()}"
    _launch(x, None, weight, out, eps, weight_offset)
    return out


def add_rms_norm(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    weight_offset: float = 0.0,
) -> torch.Tensor:
    """Add x to residual in place and return rms_norm of the sum, as residual holds it.

    x and residual: [T, N], the elements of a row contiguous, of one dtype.
    """
    _check_rows(x, weight)
    assert residual.shape == x.shape, f"x {tuple(x.shape)}, residual {tuple(residual.shape)}"
    assert residual.dtype == x.dtype, f"x is {x.dtype}, residual {residual.dtype}"
    assert residual.stride(1) == 1, f"residual has strides {residual.stride()}"
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _launch(x, residual, weight, out, eps, weight_offset)
    return out


def _check_rows(x: torch.Tensor, weight: torch.Tensor) -> None:
    assert x.ndim == 2 and x.stride(1) == 1, f"x has shape {tuple(x.shape)}, strides {x.stride()}"
    assert weight.shape == x.shape[1:] and weight.is_contiguous(), (
        f"x has shape {tuple(x.shape)}, weight {tuple(weight.shape)}"
    )
    if x.shape[1] > MAX_WIDTH:
        raise ValueError(
            f"width {x.shape[1]} is not supported by the triton norm, at most {MAX_WIDTH}"
        )


def _launch(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    weight: torch.Tensor,
    out: torch.Tensor,
    eps: float,
    weight_offset: float,
) -> None:
    num_tokens, width = x.shape
    if num_tokens == 0:
        return
    block = triton.next_power_of_2(width)
    _rms_norm_kernel[(num_tokens,)](
        x,
        residual,
        weight,
        out,
        x.stride(0),
        0 if residual is None else residual.stride(0),
        out.stride(0),
        eps,
        weight_offset,
        WIDTH=width,
        BLOCK=block,
        HAS_RESIDUAL=residual is not None,
        num_warps=min(max(block // _ELEMENTS_PER_WARP, 1), 16),
    )


@triton.jit
def _rms_norm_kernel(
    x,
    residual,
    weight,
    out,
    x_stride,
    residual_stride,
    out_stride,
    eps,
    weight_offset,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    is_column = columns < WIDTH
    values = tl.load(x + row * x_stride + columns, mask=is_column, other=0.0).to(tl.float32)
    if HAS_RESIDUAL:
        places = residual + row * residual_stride + columns
        values += tl.load(places, mask=is_column, other=0.0).to(tl.float32)
        # The norm is that of the rounded sum, which the next layer adds to.
        rounded = values.to(residual.dtype.element_ty)
        tl.store(places, rounded, mask=is_column)
        values = rounded.to(tl.float32)
    mean_square = tl.sum(values * values, 0) / WIDTH
    factors = tl.load(weight + columns, mask=is_column, other=0.0).to(tl.float32) + weight_offset
    normed = values * (1.0 / tl.sqrt_rn(mean_square + eps)) * factors
    tl.store(out + row * out_stride + columns, normed.to(out.dtype.element_ty), mask=is_column)
