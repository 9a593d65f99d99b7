"""DeviceSlotTable: a copy of the request table on the device, kept right by small changes.

A decode step changes one slot per row; copying the whole table each step would move megabytes. The
host keeps what the device has been told so far and compares: a row may change under a running
request too, where the radix tree had the same tokens already.

Shape letters: R rows of the table, C its columns, N changed entries.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from .forward_batch import ForwardBatch
from .packed_arrays import HostArray

_UNKNOWN = -1  # no slot


class DeviceSlotTable:
    """[num_rows, num_columns] int32 on device, zero at first: slot 0 is the dummy."""

    def __init__(self, num_rows: int, num_columns: int, device: torch.device) -> None:
        self.slots = torch.zeros(num_rows, num_columns, dtype=torch.int32, device=device)
        self._known = np.zeros((num_rows, num_columns), dtype=np.int32)

    @property
    def num_bytes(self) -> int:
        """Size on the device."""
        return self.slots.nbytes

    def holds(self, batch: ForwardBatch) -> bool:
        """Whether batch's rows have a place here; rows that are no request's may lie below."""
        return int(batch.table_rows.max()) < len(self._known)

    def changes(self, batch: ForwardBatch) -> dict[str, HostArray]:
        """What the device must be told before it computes batch; counts on apply() being next.

        changed_places [N] int64 count in the flattened table, changed_slots [N] int32.
        """
        num_rows, num_columns = self._known.shape
        longest = int(batch.kv_lens.max())
        assert int(batch.table_rows.max()) < num_rows and longest <= num_columns, (
            f"row {batch.table_rows.max()} of {longest} tokens in a table of {self._known.shape}"
        )
        places: list[npt.NDArray[np.int64]] = []
        slots: list[npt.NDArray[np.int32]] = []
        rows = zip(batch.table_rows.tolist(), batch.kv_lens.tolist(), strict=True)
        for row, kv_len in rows:
            known, wanted = self._known[row, :kv_len], batch.slot_table[row, :kv_len]
            changed = np.flatnonzero(known != wanted)
            if len(changed):
                known[changed] = wanted[changed]
                places.append(changed + row * num_columns)
                slots.append(wanted[changed])
        return {
            "changed_places": np.concatenate(places) if places else np.empty(0, np.int64),
            "changed_slots": np.concatenate(slots) if slots else np.empty(0, np.int32),
        }

    def forget(self, batch: ForwardBatch) -> None:
        """Count on nothing that the device was told of batch's rows: its step came to nothing."""
        if self.holds(batch):
            self._known[batch.table_rows] = _UNKNOWN

    @staticmethod
    def own_table(batch: ForwardBatch) -> dict[str, HostArray]:
        """A table for batch alone, own_table [B, longest] int32, and its rows of it."""
        longest = int(batch.kv_lens.max())
        return {
            "own_table": batch.slot_table[batch.table_rows, :longest],
            "table_rows": np.arange(batch.num_rows, dtype=np.int64),
        }

    def apply(self, staged: dict[str, torch.Tensor]) -> None:
        """Enqueue the changes, uploaded, on the current stream."""
        if "changed_places" in staged and len(staged["changed_places"]):
            self.slots.view(-1).index_copy_(0, staged["changed_places"], staged["changed_slots"])
