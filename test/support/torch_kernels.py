"""The attention kernels' meaning in torch, with shapes that depend on no length: fit for a graph.

Stands in for runtime.kernels.triton where TritonAttention is tested without a GPU; checks what the
kernels take for granted.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from runtime.kernels.reference import paged_attention
from runtime.srt.attention.triton_kernels import TritonKernels


@dataclass(frozen=True)
class PrefixGroups:
    """As in runtime.kernels.triton.shared_prefix."""

    rows: torch.Tensor
    cu_rows: torch.Tensor
    prefix_lens: torch.Tensor


class TorchKernels:
    """calls: the names of the kernels that were called, with their number of rows.

    sharing: of each call of shared_prefix_attention, the rows of the groups that have a prefix.
    """

    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []
        self.num_splits: list[int] = []
        self.max_query_lens: list[int] = []
        self.split_tokens: list[int | None] = []
        self.groups: list[PrefixGroups] = []
        self.sharing: list[list[int]] = []

    def kernels(self) -> TritonKernels:
        return TritonKernels(
            decode_attention=self.decode_attention,
            choose_num_splits=self.choose_num_splits,
            workspace_floats=lambda rows, heads, states, dim: rows * heads * states * (dim + 1),
            extend_attention=self.extend_attention,
            shared_prefix_attention=self.shared_prefix_attention,
            prefix_groups=PrefixGroups,
            store_kv=self.store_kv,
        )

    def choose_num_splits(
        self, num_rows: int, num_heads: int, num_kv_heads: int, num_processors: int, max_len: int
    ) -> int:
        return max(1, min(4 * num_processors // (num_rows * num_kv_heads), -(-max_len // 128)))

    def decode_attention(
        self,
        q: torch.Tensor,
        k_pool: torch.Tensor,
        v_pool: torch.Tensor,
        slot_table: torch.Tensor,
        table_rows: torch.Tensor,
        kv_lens: torch.Tensor,
        out: torch.Tensor,
        workspace: torch.Tensor,
        *,
        scale: float,
        num_splits: int,
        split_tokens: int | None = None,
    ) -> None:
        self.calls.append(("decode", len(q)))
        self.num_splits.append(num_splits)
        self.split_tokens.append(split_tokens)
        needed = q.shape[0] * q.shape[1] * num_splits * (q.shape[2] + 1)
        assert num_splits == 1 or workspace.numel() >= needed, "the workspace is too small"
        assert q.stride(1) == q.shape[2] and out.is_contiguous()
        assert kv_lens.dtype == torch.int32 and table_rows.dtype == torch.int64
        columns = torch.arange(slot_table.shape[1], dtype=torch.int32)
        mask = columns < kv_lens.unsqueeze(1)  # [B, C]
        slots = torch.where(mask, slot_table.index_select(0, table_rows), 0).to(torch.int64)
        found = paged_attention.decode_attention(
            q.contiguous(), k_pool, v_pool, slots, mask[:, None, None, :]
        )
        out.copy_(found)

    def extend_attention(
        self,
        q: torch.Tensor,
        k_pool: torch.Tensor,
        v_pool: torch.Tensor,
        slot_table: torch.Tensor,
        table_rows: torch.Tensor,
        cu_query_lens: torch.Tensor,
        kv_lens: torch.Tensor,
        out: torch.Tensor,
        *,
        max_query_len: int,
        scale: float,
    ) -> None:
        self.calls.append(("extend", len(table_rows)))
        starts = cu_query_lens.tolist()
        assert starts[0] == 0 and starts[-1] == len(q)
        assert max_query_len >= max(b - a for a, b in zip(starts, starts[1:], strict=False))
        self.max_query_lens.append(max_query_len)
        for row, kv_len in enumerate(kv_lens.tolist()):
            part = slice(starts[row], starts[row + 1])
            places = torch.arange(kv_len)
            num_new = starts[row + 1] - starts[row]
            mask = places.unsqueeze(0) <= places[kv_len - num_new :].unsqueeze(1)
            slots = slot_table[table_rows[row], :kv_len].to(torch.int64)
            out[part] = paged_attention.extend_attention(q[part], k_pool, v_pool, slots, mask)

    def shared_prefix_attention(
        self,
        q: torch.Tensor,
        k_pool: torch.Tensor,
        v_pool: torch.Tensor,
        slot_table: torch.Tensor,
        table_rows: torch.Tensor,
        kv_lens: torch.Tensor,
        groups: PrefixGroups,
        out: torch.Tensor,
        workspace: torch.Tensor,
        *,
        scale: float,
        num_prefix_splits: int,
        num_splits: int,
    ) -> None:
        self.groups.append(groups)
        # NumPy: what is looked at differs from replay to replay of a graph.
        rows, starts = groups.rows.numpy(), groups.cu_rows.numpy()
        lens, totals = groups.prefix_lens.numpy(), kv_lens.numpy()
        table = slot_table.numpy()[table_rows.numpy()]
        assert sorted(rows) == list(range(len(q))) and starts[-1] == len(q)
        self.sharing.append([])
        for first, last in zip(starts, starts[1:], strict=False):
            if first == last:
                continue  # padding
            (length,) = set(lens[rows[first:last]])
            assert length < totals[rows[first:last]].min()
            if length:
                self.sharing[-1].append(int(last - first))
            slots = table[rows[first:last], :length]
            assert (slots == slots[0]).all(), "the rows of a group do not share its prefix"
        needed = q.shape[0] * q.shape[1] * (num_prefix_splits + num_splits) * (q.shape[2] + 1)
        assert workspace.numel() >= needed, "the workspace is too small"
        self.decode_attention(
            q,
            k_pool,
            v_pool,
            slot_table,
            table_rows,
            kv_lens,
            out,
            workspace,
            scale=scale,
            num_splits=num_splits,
        )
        self.calls[-1] = ("shared", len(q))

    def store_kv(
        self,
        k: torch.Tensor,
        v: torch.Tensor,
        k_pool: torch.Tensor,
        v_pool: torch.Tensor,
        out_slots: torch.Tensor,
    ) -> None:
        k_pool.index_copy_(0, out_slots, k)
        v_pool.index_copy_(0, out_slots, v)
