"""What a forecast reads of the running requests, as columns: one pass over them in each step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..memory.kv_memory import KvLease
from .length_history import Kind
from .request import Request
from .survival import Floats, Ints


@dataclass(slots=True)
class ActiveColumns:
    """Columns have one row for each request: [R].

    kinds: the place of its kind in kind_places. done: its output tokens. left: those it may still
    draw. held_after_prompt: tokens that its end would free once its prompt is computed, its own and
    of the tree those that only it locks. held_now: the sum of what the ends of all would free now.
    """

    kind_places: dict[Kind | None, int]
    kinds: Ints
    done: Ints
    left: Floats
    held_after_prompt: Floats
    held_now: float

    @classmethod
    def of(cls, active: Sequence[Request]) -> ActiveColumns:
        """Read active, who hold leases."""
        count = len(active)
        leases = [one.kv_lease for one in active]
        places: dict[Kind | None, int] = {}
        kinds = [places.setdefault(one.length_kind, len(places)) for one in active]
        totals = np.fromiter([one.num_tokens for one in active], np.float64, count)
        limits = [one.max_new_tokens + one.prompt_length for one in active]
        allocated = np.fromiter([lease.num_allocated for lease in leases], np.float64, count)
        shared = np.fromiter([_shared_tokens(lease) for lease in leases], np.float64, count)
        return cls(
            kind_places=places,
            kinds=np.fromiter(kinds, np.int64, count),
            done=np.fromiter([len(one.output_ids) for one in active], np.int64, count),
            left=np.fromiter(limits, np.float64, count) - totals,
            held_after_prompt=np.maximum(totals, allocated) - shared,
            held_now=float(allocated.sum() - shared.sum()),
        )


def _shared_tokens(lease: KvLease) -> int:
    """Return the tokens of a lease that others lock too: its end would not free them."""
    tokens = lease.num_tree_owned
    node = lease.node
    while node.lock_count == 1:
        tokens -= node.num_tokens
        parent = node.parent
        assert parent is not None, f"a lock on the root: {node!r}"
        node = parent
    return tokens
