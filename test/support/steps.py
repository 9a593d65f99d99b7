"""ForwardBatches made by hand."""

from __future__ import annotations

import numpy as np

from runtime.srt.execution.forward_batch import ForwardBatch, SampleRow
from runtime.srt.sampling_params import SamplingParams


def batch_of_rows(
    lens: list[tuple[int, int]], table_rows: list[int] | None = None, columns: int | None = None
) -> ForwardBatch:
    """Rows of (new tokens, whole context), whose slots follow each other from 1 on."""
    rows = table_rows or list(range(1, len(lens) + 1))
    longest = columns or max(kv_len for _, kv_len in lens)
    table = np.zeros((max(rows) + 1, longest), dtype=np.int32)
    positions: list[int] = []
    out_slots: list[int] = []
    starts = [0]
    next_slot = 1
    for row, (num_new, kv_len) in zip(rows, lens, strict=True):
        table[row, :kv_len] = np.arange(next_slot, next_slot + kv_len)
        next_slot += kv_len
        positions += range(kv_len - num_new, kv_len)
        out_slots += table[row, kv_len - num_new : kv_len].tolist()
        starts.append(starts[-1] + num_new)
    return ForwardBatch(
        input_ids=3 + np.arange(starts[-1], dtype=np.int64) % 100,
        positions=np.array(positions, dtype=np.int64),
        out_slots=np.array(out_slots, dtype=np.int64),
        cu_query_lens=np.array(starts, dtype=np.int32),
        kv_lens=np.array([kv_len for _, kv_len in lens], dtype=np.int32),
        table_rows=np.array(rows, dtype=np.int64),
        slot_table=table,
    )


def greedy_rows(num_rows: int) -> list[SampleRow]:
    """The arg-max of each of the first rows."""
    params = SamplingParams(temperature=0.0)
    return [SampleRow(row, params, 0, 1, [], []) for row in range(num_rows)]
