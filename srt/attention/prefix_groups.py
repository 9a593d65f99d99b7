"""Which rows of a step share the beginning of their context, so that it can be read once.

Rows share a prefix where their slots are the same; a slot stands at one place of the radix tree, so
one equal slot means that all before it are equal too. One level of sharing is found: the depth that
saves most reads. Plain numpy on the host's side of a step.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..execution.forward_batch import ForwardBatch

# Below this many keys saved in a step, another kernel and the merge cost more than they save.
LEAST_SAVED_TOKENS = 4096
_SHORTEST_PREFIX = 256


@dataclass(frozen=True, slots=True)
class PrefixGroup:
    """rows of the batch whose first num_tokens slots are the same; each row has more than that."""

    rows: tuple[int, ...]
    num_tokens: int

    @property
    def num_saved_tokens(self) -> int:
        """Keys that need not be read again."""
        return (len(self.rows) - 1) * self.num_tokens


def find_prefix_groups(batch: ForwardBatch, num_rows: int) -> list[PrefixGroup]:
    """Groups among the first num_rows rows, which have one new token each.

    Empty where not enough would be saved. A row is in one group at most.
    """
    kv_lens = batch.kv_lens[:num_rows]
    if num_rows < 2 or int(kv_lens.max()) <= _SHORTEST_PREFIX:
        return []
    best: list[list[int]] = []
    best_saved, best_depth = 0, 0
    depth = _SHORTEST_PREFIX
    while depth < int(kv_lens.max()):
        found = _rows_by_slot(batch, np.flatnonzero(kv_lens > depth), depth - 1)
        saved = depth * sum(len(rows) - 1 for rows in found)
        if not found:
            break
        if saved > best_saved:
            best, best_saved, best_depth = found, saved, depth
        depth *= 2
    groups = [PrefixGroup(tuple(rows), _common_length(batch, rows, best_depth)) for rows in best]
    return groups if sum(g.num_saved_tokens for g in groups) >= LEAST_SAVED_TOKENS else []


def _rows_by_slot(
    batch: ForwardBatch, rows: npt.NDArray[np.intp], position: int
) -> list[list[int]]:
    """The rows that share their slot at position, in groups of two or more."""
    slots = batch.slot_table[batch.table_rows[rows], position]
    by_slot: dict[int, list[int]] = {}
    for row, slot in zip(rows.tolist(), slots.tolist(), strict=True):
        by_slot.setdefault(slot, []).append(row)
    return [found for found in by_slot.values() if len(found) > 1]


def _common_length(batch: ForwardBatch, rows: list[int], known: int) -> int:
    """How many slots the rows share, at least known: found by halving, as sharing only ends."""
    table_rows = batch.table_rows[rows]
    low, high = known, int(batch.kv_lens[rows].min()) - 1  # the new token is a row's own
    while low < high:
        middle = (low + high + 1) // 2
        slots = batch.slot_table[table_rows, middle - 1]
        if (slots == slots[0]).all():
            low = middle
        else:
            high = middle - 1
    return low
