"""Rotary position embedding of queries and keys in place, after the norm of their heads if any.

In the half-split layout: element i of a head turns with element i + D/2. Computed in f32 and
rounded once. Source: Su et al., 2021, "RoFormer: Enhanced Transformer with Rotary Position
Embedding". Shape letters: T new tokens, H query heads, K kv heads, D head_dim, P positions.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

_PAIRS_PER_PROGRAM = 1024


def rotary(
    q: torch.Tensor,
    k: torch.Tensor,
    positions: torch.Tensor,
    cos_sin_table: torch.Tensor,
    q_norm: torch.Tensor | None = None,
    k_norm: torch.Tensor | None = None,
    eps: float = 1e-6,
) -> None:
    """Turn the heads of q [T, H, D] and k [T, K, D] in place by the angles of positions [T].

    q and k may be views of one matrix; the elements of a head are contiguous. cos_sin_table:
    [P, D] f32, contiguous, D/2 cosines and D/2 sines of each position; positions are below P.
    q_norm and k_norm: [D], both or neither; then every head is first scaled to unit mean square,
    times the norm.
    """
    num_tokens, num_heads, head_dim = q.shape
    num_kv_heads = k.shape[1]
    assert k.shape == (num_tokens, num_kv_heads, head_dim), f"q {q.shape}, k {k.shape}"
    assert q.stride(2) == k.stride(2) == 1, f"strides of q {q.stride()}, of k {k.stride()}"
    assert q.dtype == k.dtype, f"q is {q.dtype}, k {k.dtype}"
    assert positions.shape == (num_tokens,), f"{positions.shape} positions for {num_tokens} tokens"
    assert cos_sin_table.shape[1] == head_dim and cos_sin_table.is_contiguous(), (
        f"head_dim is {head_dim}, the table has shape {tuple(cos_sin_table.shape)}"
    )
    assert head_dim % 2 == 0, f"head_dim is {head_dim}, not even"
    assert (q_norm is None) == (k_norm is None), "one of q_norm and k_norm is missing"
    for norm in (q_norm, k_norm):
        assert norm is None or (norm.shape == (head_dim,) and norm.is_contiguous()), (
            f"head_dim is {head_dim}, a norm has shape {tuple(norm.shape)}"
        )
    if num_tokens == 0:
        return
    block_half = triton.next_power_of_2(head_dim // 2)
    block_heads = min(
        triton.next_power_of_2(max(num_heads, num_kv_heads)),
        max(_PAIRS_PER_PROGRAM // block_half, 1),
    )
    num_q_blocks = triton.cdiv(num_heads, block_heads)
    num_k_blocks = triton.cdiv(num_kv_heads, block_heads)
    _rotary_kernel[(num_tokens, num_q_blocks + num_k_blocks)](
        q,
        k,
        positions,
        cos_sin_table,
        q_norm,
        k_norm,
        q.stride(0),
        q.stride(1),
        k.stride(0),
        k.stride(1),
        eps,
        NUM_HEADS=num_heads,
        NUM_KV_HEADS=num_kv_heads,
        NUM_Q_BLOCKS=num_q_blocks,
        HALF=head_dim // 2,
        BLOCK_HEADS=block_heads,
        BLOCK_HALF=block_half,
        HAS_NORM=q_norm is not None,
        num_warps=4,
    )


@triton.jit
def _rotary_kernel(
    q,
    k,
    positions,
    cos_sin_table,
    q_norm,
    k_norm,
    q_stride,
    q_head_stride,
    k_stride,
    k_head_stride,
    eps,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    NUM_Q_BLOCKS: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
    HAS_NORM: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    pairs = tl.arange(0, BLOCK_HALF)
    angles = cos_sin_table + tl.load(positions + token).to(tl.int64) * (2 * HALF) + pairs
    cos = tl.load(angles, mask=pairs < HALF, other=0.0)
    sin = tl.load(angles + HALF, mask=pairs < HALF, other=0.0)
    if block < NUM_Q_BLOCKS:
        heads = block * BLOCK_HEADS + tl.arange(0, BLOCK_HEADS)
        _turn(
            q + token * q_stride + heads[:, None] * q_head_stride + pairs[None, :],
            (heads < NUM_HEADS)[:, None] & (pairs < HALF)[None, :],
            cos,
            sin,
            q_norm,
            eps,
            HALF,
            BLOCK_HALF,
            HAS_NORM,
        )
    else:
        heads = (block - NUM_Q_BLOCKS) * BLOCK_HEADS + tl.arange(0, BLOCK_HEADS)
        _turn(
            k + token * k_stride + heads[:, None] * k_head_stride + pairs[None, :],
            (heads < NUM_KV_HEADS)[:, None] & (pairs < HALF)[None, :],
            cos,
            sin,
            k_norm,
            eps,
            HALF,
            BLOCK_HALF,
            HAS_NORM,
        )


@triton.jit
def _turn(
    places,
    mask,
    cos,
    sin,
    norm,
    eps,
    HALF: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
    HAS_NORM: tl.constexpr,
):
    """Turn the pairs (places, places + HALF), both [heads, pairs]; cos and sin are [pairs]."""
    first = tl.load(places, mask=mask, other=0.0).to(tl.float32)
    second = tl.load(places + HALF, mask=mask, other=0.0).to(tl.float32)
    if HAS_NORM:
        mean_square = tl.sum(first * first + second * second, 1) / (2 * HALF)
        scale = (1.0 / tl.sqrt_rn(mean_square + eps))[:, None]
        pairs = tl.arange(0, BLOCK_HALF)
        weights = tl.load(norm + pairs, mask=pairs < HALF, other=0.0).to(tl.float32)
        first = first * scale * weights[None, :]
        weights = tl.load(norm + HALF + pairs, mask=pairs < HALF, other=0.0).to(tl.float32)
        second = second * scale * weights[None, :]
    dtype: tl.constexpr = places.dtype.element_ty
    turned = first * cos[None, :] - second * sin[None, :]
    tl.store(places, turned.to(dtype), mask=mask)
    turned = second * cos[None, :] + first * sin[None, :]
    tl.store(places + HALF, turned.to(dtype), mask=mask)
