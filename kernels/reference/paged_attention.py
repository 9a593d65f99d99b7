"""Attention over scattered KV slots: the meaning of every faster version.

Rows are gathered into dense keys and values and handed to torch's scaled-dot-product attention.

Shape letters: B rows, Q new tokens of a row, L keys of a row, H query heads, K kv heads,
D head_dim.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F


def decode_attention(
    q: torch.Tensor,
    k_slots: torch.Tensor,
    v_slots: torch.Tensor,
    slots: torch.Tensor,
    mask: torch.Tensor,
) -> torch.Tensor:
    """Attention of one new token per row over that row's slots, its own included.

    q: [B, H, D]; k_slots and v_slots: [num_slots, K, D]; slots: [B, L] int64, padded with any slot
    that holds finite values; mask: [B, 1, 1, L] bool, true where a slot counts. Returns [B, H, D].
    """
    num_rows, num_heads, head_dim = q.shape
    num_kv_heads = k_slots.shape[1]
    k = _gathered(k_slots, slots)  # [B, K, L, D]
    v = _gathered(v_slots, slots)
    # Query heads that share a kv head are laid out as queries of that head: no copies of k and v.
    grouped = q.view(num_rows, num_kv_heads, num_heads // num_kv_heads, head_dim)
    out = F.scaled_dot_product_attention(grouped, k, v, attn_mask=mask)
    return out.reshape(num_rows, num_heads, head_dim)


def extend_attention(
    q: torch.Tensor,
    k_slots: torch.Tensor,
    v_slots: torch.Tensor,
    slots: torch.Tensor,
    mask: torch.Tensor | None,
) -> torch.Tensor:
    """Causal attention of one row's new tokens over its whole context, new tokens included.

    q: [Q, H, D]; slots: [L] int64 in position order, the new tokens' last; mask: [Q, L] bool, or
    None where nothing precedes the new tokens (Q == L). Returns [Q, H, D].
    """
    k = _gathered(k_slots, slots.unsqueeze(0))  # [1, K, L, D]
    v = _gathered(v_slots, slots.unsqueeze(0))
    out = F.scaled_dot_product_attention(
        q.transpose(0, 1).unsqueeze(0),  # [1, H, Q, D]
        k,
        v,
        attn_mask=mask,
        is_causal=mask is None,
        enable_gqa=q.shape[1] != k.shape[1],
    )
    return out.squeeze(0).transpose(0, 1)


def _gathered(pool: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    """[num_slots, K, D] and [B, L] -> [B, K, L, D]."""
    dense = pool.index_select(0, slots.reshape(-1))
    return dense.view(*slots.shape, *pool.shape[1:]).transpose(1, 2)
