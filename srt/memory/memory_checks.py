"""Whole-pool assertion, for tests: every usable slot is in exactly one place. O(pool)."""

from __future__ import annotations

import numpy as np

from .kv_memory import KvMemory
from .path_walk import path_slots
from .tree_checks import all_slots, check_tree


def check_memory(memory: KvMemory) -> None:
    """Assert that each slot is free, in the tree or held by one lease, and that counters agree."""
    memory.check_identity()
    check_tree(memory.tree)
    memory.allocator.check_invariants()
    pinned = sum(node.num_tokens for node in memory.tree.nodes() if node.pin_count > 0)
    assert pinned == memory.pinned_tokens, f"{pinned} tokens pinned, counted {memory.pinned_tokens}"
    parts = [memory.allocator.free_slots(), all_slots(memory.tree)]
    for lease in memory.open_leases():
        assert lease.is_open, f"lease of row {lease.row} is closed"
        in_tree = memory.slots(lease, 0, lease.num_tree_owned)
        expected = path_slots(lease.node, lease.num_tree_owned)
        assert (in_tree == expected).all(), f"row {lease.row} does not point to the tree's slots"
        parts.append(memory.slots(lease, lease.num_tree_owned, lease.num_allocated))
    held = sum(len(part) for part in parts[2:])
    assert held == memory.held_tokens, f"{held} slots held, counted {memory.held_tokens}"
    slots = np.sort(np.concatenate(parts))
    everything = np.arange(memory.page_size, memory.num_pool_slots)
    assert np.array_equal(slots, everything), f"slots lost or owned twice: {slots}"
