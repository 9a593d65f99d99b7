"""Whole-tree assertions, for tests: O(nodes)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .path_walk import Skip
from .radix_node import RadixNode, slots_array
from .radix_tree import RadixTree
from .token_span import BYTES_PER_TOKEN


def check_tree(tree: RadixTree) -> None:
    """Assert that links, locks, counters, eviction order and watches agree."""
    num_nodes = evictable = protected = 0
    has_evictable_leaf = False
    _check_node(tree, tree.root)
    for node in tree.nodes():
        _check_node(tree, node)
        num_nodes += 1
        if node.lock_count == 0:
            evictable += node.num_tokens
            has_evictable_leaf |= not node.children
        else:
            protected += node.num_tokens
    assert num_nodes == tree.num_nodes, f"{num_nodes} nodes, counted {tree.num_nodes}"
    assert (evictable, protected) == (tree.evictable_tokens, tree.protected_tokens), (
        f"evictable {evictable}, protected {protected}; "
        f"counted {tree.evictable_tokens}, {tree.protected_tokens}"
    )
    first = tree.next_to_evict()
    assert (first is not None) == has_evictable_leaf, f"next to evict {first}"
    assert first is None or (not first.children and first.lock_count == 0 and first.parent), first
    assert tree.watches.is_settled, "watches wait to be settled"


def all_slots(tree: RadixTree) -> NDArray[np.int32]:
    """Return the slots of all nodes, in no stated order."""
    return slots_array([b"", *(node.used_slots() for node in tree.nodes())])


def _check_node(tree: RadixTree, node: RadixNode) -> None:
    page_bytes = tree.page_size * BYTES_PER_TOKEN
    for edge, child in node.children.items():
        assert child.parent is node and child.edge == edge, f"broken link at {edge!r}"
        assert edge[:page_bytes] == child.span[:page_bytes], f"edge {edge!r}"
        assert child.num_tokens > 0 and child.num_tokens % tree.page_size == 0, (
            f"node of {child.num_tokens} tokens with pages of {tree.page_size}"
        )
        assert len(child.slots) == len(child.span) >= child.num_tokens * BYTES_PER_TOKEN
        assert not child.children or len(child.span) == child.num_tokens * BYTES_PER_TOKEN
        skip = child.skip_up
        assert skip is None or (skip.target is child and skip.source.skip_down is skip)
        assert child.lock_count >= child.pin_count >= 0, f"{child.lock_count} {child.pin_count}"
    if node is not tree.root:
        locked = sum(child.lock_count > 0 for child in node.children.values())
        pinned = sum(child.pin_count > 0 for child in node.children.values())
        assert node.lock_count >= locked, f"lock count {node.lock_count}, locked children {locked}"
        assert node.pin_count >= pinned, f"pin count {node.pin_count}, pinned children {pinned}"
    if node.skip_down is not None:
        _check_skip(node, node.skip_down)
    for edge, place in (node.watches or {}).items():
        assert place.node is node and place.edge == edge and edge not in node.children
        assert place.watches and all(watch.place is place for watch in place.watches)


def _check_skip(source: RadixNode, skip: Skip) -> None:
    assert skip.source is source and skip.target.skip_up is skip, "skip not known at both ends"
    spans: list[bytes] = []
    slots: list[bytes] = []
    at = skip.target
    while at is not source:
        assert at.parent is not None, "skip to a node that is not below its source"
        spans.insert(0, at.span[: at.num_tokens * BYTES_PER_TOKEN])
        slots.insert(0, at.used_slots())
        at = at.parent
    assert (skip.span, skip.slots) == (b"".join(spans), b"".join(slots)), "skip is out of date"
