"""Merging partial attention results by their log-sum-exp.

A state is attention over some of a row's keys: its normalised output and the log-sum-exp of its
logits, in base 2. A state over no keys has log-sum-exp minus infinity, and its output is not read.
The order of the sum depends on a state's number only, so dead states at the end change no bit.
Source: Flash-Decoding (Dao et al., 2023).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

_STATES_PER_STEP = 16


@dataclass(frozen=True, slots=True)
class PartialStates:
    """out: [B, H, S, D]; lse: [B, H, S] float32, or None where a single state is the result."""

    out: torch.Tensor
    lse: torch.Tensor | None


def workspace_floats(num_rows: int, num_heads: int, num_states: int, head_dim: int) -> int:
    """Size of the workspace that holds num_states of every row and head."""
    return num_rows * num_heads * num_states * (head_dim + 1)


def partial_states(
    workspace: torch.Tensor, num_rows: int, num_heads: int, num_states: int, head_dim: int
) -> PartialStates:
    """The first part of a flat float32 workspace as states."""
    needed = workspace_floats(num_rows, num_heads, num_states, head_dim)
    assert workspace.dtype == torch.float32, f"workspace is {workspace.dtype}, not float32"
    assert workspace.numel() >= needed, f"workspace has {workspace.numel()} floats, needs {needed}"
    num_out = needed // (head_dim + 1) * head_dim
    return PartialStates(
        workspace[:num_out].view(num_rows, num_heads, num_states, head_dim),
        workspace[num_out:needed].view(num_rows, num_heads, num_states),
    )


def merge_states(states: PartialStates, out: torch.Tensor, lse: torch.Tensor | None = None) -> None:
    """Write attention over all keys of all states to out [B, H, D], and its lse [B, H] if given.

    out is contiguous, of any float type; lse is float32, in base 2. Rows with no key become zero.
    """
    num_rows, num_heads, num_states, head_dim = states.out.shape
    assert out.shape == (num_rows, num_heads, head_dim) and out.is_contiguous(), (
        f"out has shape {tuple(out.shape)}, states {tuple(states.out.shape)}"
    )
    if num_rows == 0:
        return
    _merge_states_kernel[(num_heads, num_rows)](
        states.out,
        states.lse,
        out,
        lse,
        num_states,
        HEAD_DIM=head_dim,
        BLOCK_D=triton.next_power_of_2(head_dim),
        BLOCK_S=_STATES_PER_STEP,
        HAS_LSE=lse is not None,
        num_warps=4,
    )


@triton.jit
def _merge_states_kernel(
    partial_out,
    partial_lse,
    out,
    lse,
    num_states,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_S: tl.constexpr,
    HAS_LSE: tl.constexpr,
):
    row = (tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)).to(tl.int64)
    dims = tl.arange(0, BLOCK_D)
    offsets = tl.arange(0, BLOCK_S)
    peak = -float("inf")
    total = 0.0
    acc = tl.zeros([BLOCK_D], dtype=tl.float32)
    for first in range(0, num_states, BLOCK_S):
        number = first + offsets
        state_lse = tl.load(
            partial_lse + row * num_states + number, mask=number < num_states, other=-float("inf")
        )
        is_live = state_lse > -float("inf")
        values = tl.load(
            partial_out + (row * num_states + number[:, None]) * HEAD_DIM + dims[None, :],
            mask=is_live[:, None] & (dims < HEAD_DIM)[None, :],
            other=0.0,
        )
        new_peak = tl.maximum(peak, tl.max(state_lse, 0))
        # No live state so far: any finite number keeps the difference from being NaN.
        base = tl.where(new_peak == -float("inf"), 0.0, new_peak)
        weights = tl.exp2(state_lse - base)
        rescale = tl.exp2(peak - base)
        acc = acc * rescale + tl.sum(values * weights[:, None], 0)
        total = total * rescale + tl.sum(weights, 0)
        peak = new_peak
    total = tl.where(total == 0.0, 1.0, total)  # no live state: zero, and peak is minus infinity
    acc = acc / total
    tl.store(out + row * HEAD_DIM + dims, acc.to(out.dtype.element_ty), mask=dims < HEAD_DIM)
    if HAS_LSE:
        tl.store(lse + row, peak + tl.log2(total))
