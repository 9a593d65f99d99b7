"""RequestTable: rows and the memory they stand in."""

from __future__ import annotations

import pytest

from runtime.srt.memory.request_table import RequestTable


def test_each_row_is_handed_out_once_and_the_dummy_row_never() -> None:
    table = RequestTable(num_rows=3, num_columns=8)

    rows = [table.take_row() for _ in range(4)]

    assert rows[3] is None
    assert {row for row in rows if row is not None} == {1, 2, 3}


def test_released_row_can_be_taken_again() -> None:
    table = RequestTable(num_rows=1, num_columns=8)
    row = table.take_row()
    assert row is not None

    table.release_row(row)

    assert table.num_free_rows == 1
    assert table.take_row() == row


@pytest.mark.parametrize("row", [0, 2, 7, -1])
def test_release_of_a_row_that_is_not_out_is_refused(row: int) -> None:
    table = RequestTable(num_rows=3, num_columns=8)
    table.take_row()

    with pytest.raises(AssertionError, match="not taken"):
        table.release_row(row)
