"""The table that tells each running request where its tokens' KV stands.

Row r, column p is the slot of position p of the request that owns row r. The memory is one numpy
array for the life of the process, so torch.from_numpy shares it with the forward pass uncopied.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


class RequestTable:
    """num_rows usable rows of num_columns slots; row 0 is one more, a dummy for padded rows."""

    def __init__(self, num_rows: int, num_columns: int) -> None:
        self.num_rows = num_rows
        self.num_columns = num_columns
        # zeros: the system gives memory as rows are first written, so a long context is free.
        self.slot_table: NDArray[np.int32] = np.zeros((num_rows + 1, num_columns), dtype=np.int32)
        self._free_rows = list(range(num_rows, 0, -1))
        self._is_taken = bytearray(num_rows + 1)

    @property
    def num_free_rows(self) -> int:
        """Rows that take_row() can still hand out."""
        return len(self._free_rows)

    def take_row(self) -> int | None:
        """Return a row of the caller's own, its content undefined, or None when all are taken."""
        if not self._free_rows:
            return None
        row = self._free_rows.pop()
        self._is_taken[row] = 1
        return row

    def release_row(self, row: int) -> None:
        """Take back a row from take_row(); asserts that it is out."""
        assert 1 <= row <= self.num_rows and self._is_taken[row], (
            f"row {row} of {self.num_rows} is not taken"
        )
        self._is_taken[row] = 0
        self._free_rows.append(row)
