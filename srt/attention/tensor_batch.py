"""TensorBatch: a ForwardBatch as torch tensors, for models and attention written in torch.

Shape letters: B rows, T new tokens of all rows, R rows of the slot table, C its columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from ..execution.forward_batch import ForwardBatch


@dataclass(frozen=True, slots=True)
class TensorBatch:
    """The fields of ForwardBatch, all on one device.

    host: the same step on the host, for who plans by its lengths; None in a captured graph, where
    every row has one new token and no length is known yet. prefix: in a captured step that reads
    shared prefixes once, the tensors of PrefixGraphAttention.prefix_arrays.
    """

    input_ids: torch.Tensor  # [T] int64
    positions: torch.Tensor  # [T] int64
    out_slots: torch.Tensor  # [T] int64
    cu_query_lens: torch.Tensor  # [B + 1] int32
    kv_lens: torch.Tensor  # [B] int32
    table_rows: torch.Tensor  # [B] int64
    slot_table: torch.Tensor  # [R, C] int32; on the CPU the request table itself, not a copy
    host: ForwardBatch | None = None
    prefix: Mapping[str, torch.Tensor] | None = None

    @staticmethod
    def of_tensors(
        tensors: Mapping[str, torch.Tensor],
        cu_query_lens: torch.Tensor,
        slot_table: torch.Tensor,
        host: ForwardBatch | None,
    ) -> TensorBatch:
        """A step whose other fields are on the device by name."""
        return TensorBatch(
            input_ids=tensors["input_ids"],
            positions=tensors["positions"],
            out_slots=tensors["out_slots"],
            cu_query_lens=cu_query_lens,
            kv_lens=tensors["kv_lens"],
            table_rows=tensors["table_rows"],
            slot_table=slot_table,
            host=host,
        )

    @staticmethod
    def of(batch: ForwardBatch, device: torch.device) -> TensorBatch:
        """The same step on device."""
        return TensorBatch(
            input_ids=torch.from_numpy(batch.input_ids).to(device),
            positions=torch.from_numpy(batch.positions).to(device),
            out_slots=torch.from_numpy(batch.out_slots).to(device),
            cu_query_lens=torch.from_numpy(batch.cu_query_lens).to(device),
            kv_lens=torch.from_numpy(batch.kv_lens).to(device),
            table_rows=torch.from_numpy(batch.table_rows).to(device),
            slot_table=torch.from_numpy(batch.slot_table).to(device),
            host=batch,
        )
