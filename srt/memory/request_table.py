"""The table that tells each running request where its tokens' KV stands.

Row r, column p is the slot of position p of the request that owns row r. The memory is one numpy
array for the life of the process, which the forward pass reads uncopied.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

DEFAULT_MAX_ROWS = 256
TOKENS_PER_ROW = 64  # a pool smaller than this times the rows could not feed them


def default_num_rows(total_tokens: int) -> int:
    """Return how many requests run at once over a pool of total_tokens, where no flag says it."""
    return max(1, min(DEFAULT_MAX_ROWS, total_tokens // TOKENS_PER_ROW))


def table_bytes(num_rows: int, num_columns: int) -> int:
    """Return the size of such a table once all of it is written."""
    return (num_rows + 1) * num_columns * np.dtype(np.int32).itemsize


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
