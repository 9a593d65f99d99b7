"""Attention in plain torch: slow and obvious, the meaning of the other backends.

Rows that decode one token are computed in groups of similar length, other rows one by one.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import torch

from runtime.kernels.reference.paged_attention import decode_attention, extend_attention

from ..memory.kv_pool import KvPool
from .tensor_batch import TensorBatch

# Below this many keys, padding to a common length costs less than another call.
_SMALLEST_GROUP_KEYS = 256


@dataclass(frozen=True, slots=True)
class _DecodeGroup:
    tokens: torch.Tensor  # [B] int64, places on the T axis
    slots: torch.Tensor  # [B, L] int64, padded with slot 0
    mask: torch.Tensor  # [B, 1, 1, L] bool


@dataclass(frozen=True, slots=True)
class _ExtendRow:
    start: int  # place of the first new token on the T axis
    end: int
    slots: torch.Tensor  # [L] int64
    mask: torch.Tensor | None  # [Q, L] bool; None: plain causal


class TorchReferenceAttention:
    """Runs on any device; reads the row lengths back to the host once per step."""

    name = "torch_reference"

    def __init__(self) -> None:
        self._prepared: TensorBatch | None = None
        self._decode_groups: list[_DecodeGroup] = []
        self._extend_rows: list[_ExtendRow] = []

    def prepare(self, batch: TensorBatch) -> None:
        """Group the rows and gather their slots."""
        starts = batch.cu_query_lens.tolist()
        kv_lens = batch.kv_lens.tolist()
        decode_rows: dict[int, list[int]] = defaultdict(list)
        self._extend_rows = []
        for row, kv_len in enumerate(kv_lens):
            query_len = starts[row + 1] - starts[row]
            if query_len == 1:
                decode_rows[_group_keys(kv_len)].append(row)
            elif query_len > 1:
                self._extend_rows.append(
                    _extend_row(batch, row, starts[row], starts[row + 1], kv_len)
                )
        self._decode_groups = [
            _decode_group(batch, rows, starts, kv_lens) for rows in decode_rows.values()
        ]
        self._prepared = batch

    def forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        layer: int,
        kv_pool: KvPool,
        batch: TensorBatch,
    ) -> torch.Tensor:
        """See AttentionBackend.forward."""
        assert batch is self._prepared, "prepare(batch) must come first"
        kv_pool.write(layer, batch.out_slots, k, v)
        k_slots, v_slots = kv_pool.k[layer], kv_pool.v[layer]
        out = torch.empty_like(q)
        for group in self._decode_groups:
            out[group.tokens] = decode_attention(
                q[group.tokens], k_slots, v_slots, group.slots, group.mask
            )
        for row in self._extend_rows:
            out[row.start : row.end] = extend_attention(
                q[row.start : row.end], k_slots, v_slots, row.slots, row.mask
            )
        return out


def _group_keys(kv_len: int) -> int:
    """Lengths within a factor of two share a group, so at most half of it is padding."""
    return max(_SMALLEST_GROUP_KEYS, 1 << (kv_len - 1).bit_length())


def _decode_group(
    batch: TensorBatch, rows: list[int], starts: list[int], kv_lens: list[int]
) -> _DecodeGroup:
    device = batch.slot_table.device
    longest = max(kv_lens[row] for row in rows)
    lens = torch.tensor([kv_lens[row] for row in rows], device=device)
    table_rows = batch.table_rows[torch.tensor(rows, device=device)]
    mask = torch.arange(longest, device=device).unsqueeze(0) < lens.unsqueeze(1)  # [B, L]
    # Slot 0 is never written by a request, so what stands there is finite.
    slots = batch.slot_table[table_rows, :longest].to(torch.int64) * mask
    tokens = torch.tensor([starts[row] for row in rows], device=device)
    return _DecodeGroup(tokens, slots, mask[:, None, None, :])


def _extend_row(batch: TensorBatch, row: int, start: int, end: int, kv_len: int) -> _ExtendRow:
    slots = batch.slot_table[batch.table_rows[row], :kv_len].to(torch.int64)
    query_len = end - start
    if query_len == kv_len:
        return _ExtendRow(start, end, slots, None)
    places = torch.arange(kv_len, device=slots.device)
    last_visible = places[kv_len - query_len :].unsqueeze(1)  # [Q, 1]
    return _ExtendRow(start, end, slots, places.unsqueeze(0) <= last_visible)
