"""Token-span radix tree over KV slots.

Maps token sequences to the slots that hold their keys and values. Knows nothing of requests or
devices: slots are integers. Only unlocked leaves are evicted, in the order of a policy, and a long
leaf from its tail, so a cached prefix never loses its middle. No operation looks at more than one
path and what it frees.
Source: RadixAttention (Zheng et al., 2024, section 3).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .eviction_order import make_order
from .path_walk import descend, drop_skip_to, path_slots
from .prefix_watch import WatchTable
from .radix_node import RadixNode, slots_array
from .token_span import BYTES_PER_TOKEN, common_prefix_bytes

_INT32 = np.dtype(np.int32)


@dataclass(slots=True)  # not frozen, nor is InsertResult: that costs a tenth of a match
class PrefixMatch:
    """The longest cached prefix: its length and the node where it ends (the root for 0)."""

    num_tokens: int
    node: RadixNode

    def slots(self) -> NDArray[np.int32]:
        """Return the prefix's slots in token order, read-only."""
        return path_slots(self.node, self.num_tokens)


@dataclass(slots=True)
class InsertResult:
    """How many leading tokens stood in the tree before, and the node where all of them now end."""

    num_already_cached: int
    node: RadixNode


class RadixTree:
    """A tree of whole pages; free_slots takes back the slots of what is evicted or flushed."""

    def __init__(
        self,
        page_size: int,
        free_slots: Callable[[NDArray[np.int32]], None],
        policy: str = "lru",
    ) -> None:
        self.page_size = page_size
        self.root = RadixNode(parent=None, edge=b"", span=b"", slots=b"", num_tokens=0)
        self.evictable_tokens = 0
        self.protected_tokens = 0
        self.evicted_tokens_total = 0
        self.num_nodes = 0
        self.watches = WatchTable(page_size, self.root, self._descend_and_split, self._edge)
        self._order = make_order(policy)
        self._page_bytes = page_size * BYTES_PER_TOKEN
        self._free_slots = free_slots

    @property
    def total_tokens(self) -> int:
        """Tokens in the tree, locked or not."""
        return self.evictable_tokens + self.protected_tokens

    def match_prefix(
        self, token_ids: NDArray[np.int32], namespace: str | None = None
    ) -> PrefixMatch:
        """Return the longest cached prefix of token_ids, in whole pages.

        May split a node and marks the path as used now. The node stays valid only while it is
        locked (see lock) or until the next call that evicts.
        """
        query = self._encode(token_ids)
        node, matched = self._descend_and_split(self.root, query, namespace)
        self._use(node)
        return PrefixMatch(matched // BYTES_PER_TOKEN, node)

    def peek_prefix_length(self, token_ids: NDArray[np.int32], namespace: str | None = None) -> int:
        """Return what match_prefix would find, in tokens, and change nothing."""
        query = self._encode(token_ids)
        edge = self._edge(self.root, query, 0, namespace)
        _, matched, child = descend(self.root, edge, query, self._page_bytes)
        if child is not None:
            matched += self._shared_page_bytes(child, query, matched)
        return matched // BYTES_PER_TOKEN

    def count_hit(self, node: RadixNode) -> None:
        """Note that a request took the prefix that ends at node from the cache, for lfu and slru.

        Apart from match_prefix because a request may look its prefix up many times before it runs.
        """
        node.num_hits += 1

    def insert(
        self,
        token_ids: NDArray[np.int32],
        slots: NDArray[np.int32],
        namespace: str | None = None,
        priority: int = 0,
    ) -> InsertResult:
        """Put a sequence of whole pages in the tree and mark its path as used now.

        The tree copies and owns slots[num_already_cached:]; the slots before are duplicates that
        stay the caller's to free. The prefix and all it begins with have priority from now on,
        if they had less.
        """
        return self.insert_below(self.root, token_ids, slots, namespace, priority)

    def insert_below(
        self,
        start: RadixNode,
        token_ids: NDArray[np.int32],
        slots: NDArray[np.int32],
        namespace: str | None = None,
        priority: int = 0,
    ) -> InsertResult:
        """insert() the continuation of the prefix that ends at start.

        start is the root or a node that the caller has locked; namespace counts at the root only.
        """
        assert len(token_ids) == len(slots), f"{len(token_ids)} tokens but {len(slots)} slots"
        assert len(slots) % self.page_size == 0, (
            f"{len(slots)} tokens are not whole pages of {self.page_size}"
        )
        query = self._encode(token_ids)
        node, matched = self._descend_and_split(start, query, namespace)
        if matched < len(query):
            node = self._add_leaf(node, query, matched, slots, namespace, priority)
        else:
            node.priority = max(node.priority, priority)
            self._use(node)
        return InsertResult(matched // BYTES_PER_TOKEN, node)

    def lock(self, node: RadixNode) -> None:
        """Protect the prefix that ends at node from eviction, until one unlock(node) per lock."""
        at = node
        while (parent := at.parent) is not None:
            at.lock_count += 1
            if at.lock_count > 1:
                return  # so is all above: each locked node counts in its parent
            self._order.lock(at)
            self.evictable_tokens -= at.num_tokens
            self.protected_tokens += at.num_tokens
            at = parent
        assert at is self.root, "lock of a node that has left the tree"

    def extend_lock(self, held: RadixNode, node: RadixNode) -> None:
        """Turn the caller's lock on held into one on node, a descendant of held or held itself."""
        self.lock(node)
        if held is not self.root:
            assert held.lock_count > 1, "node is not below the held one, or held is not locked"
            held.lock_count -= 1

    def unlock(self, node: RadixNode) -> None:
        """Undo one lock(node). What nobody locks any more counts as used now."""
        at = node
        while (parent := at.parent) is not None:
            assert at.lock_count > 0, f"unlock of a prefix with lock count {at.lock_count}"
            at.lock_count -= 1
            if at.lock_count > 0:
                return
            if at is node:
                self._order.use(at)
            self.evictable_tokens += at.num_tokens
            self.protected_tokens -= at.num_tokens
            at = parent
        assert at is self.root, "unlock of a node that has left the tree"

    def evict(self, num_tokens: int) -> int:
        """Free at least num_tokens if so many are evictable, else all that are; return how many.

        Frees num_tokens rounded up to a page, no more: the last leaf gives only its tail.
        """
        freed: list[bytes] = []
        num_freed = 0
        while num_freed < num_tokens:
            leaf = self._order.next_to_evict()
            if leaf is None:
                break
            wanted = -(-(num_tokens - num_freed) // self.page_size) * self.page_size
            if leaf.num_tokens <= wanted:
                num_freed += leaf.num_tokens
                freed.append(self._drop_leaf(leaf))
            else:
                num_freed += wanted
                freed.append(self._cut_leaf(leaf, wanted))
        if freed:
            self.evictable_tokens -= num_freed
            self.evicted_tokens_total += num_freed
            if not self.watches.is_settled:
                self.watches.settle()
            self._free_slots(slots_array(freed))
        return num_freed

    def flush(self) -> None:
        """Free everything. Nothing may be locked."""
        assert self.protected_tokens == 0, (
            f"flush with {self.protected_tokens} tokens locked, {self.evictable_tokens} evictable"
        )
        nodes = list(self.nodes())
        for node in nodes:  # cut the links, so that no deep chain is torn down recursively
            node.parent = node.skip_down = node.skip_up = None
            node.children = {}
        self.root.children = {}
        self._order.clear()
        self.evictable_tokens = 0
        self.num_nodes = 0
        if nodes:
            self.watches.flushed(nodes)
            self.watches.settle()
            self._free_slots(slots_array([node.used_slots() for node in nodes]))

    def nodes(self) -> Iterator[RadixNode]:
        """All nodes but the root, parents before their children."""
        pending = list(self.root.children.values())
        while pending:
            node = pending.pop()
            pending.extend(node.children.values())
            yield node

    def next_to_evict(self) -> RadixNode | None:
        """Return the leaf that evict() would take first, for checks."""
        return self._order.next_to_evict()

    def _encode(self, values: NDArray[np.int32]) -> bytes:
        """Return the whole pages of tokens or slots as bytes."""
        if values.dtype is not _INT32:
            values = values.astype(np.int32)
        if self.page_size > 1:
            values = values[: len(values) // self.page_size * self.page_size]
        return values.tobytes()

    def _edge(self, node: RadixNode, query: bytes, offset: int, namespace: str | None) -> bytes:
        page = query[offset : offset + self._page_bytes]
        if namespace is None or node is not self.root:
            return page
        # Longer than any page, so never equal to one without a namespace.
        return page + b"/" + namespace.encode("utf-8", "surrogatepass")

    def _use(self, node: RadixNode) -> None:
        if node.lock_count == 0 and node is not self.root:
            self._order.use(node)

    def _descend_and_split(
        self, start: RadixNode, query: bytes, namespace: str | None
    ) -> tuple[RadixNode, int]:
        """Go down, and split the child that matches in part, so that the match ends at a node."""
        edge = self._edge(start, query, 0, namespace)
        node, offset, child = descend(start, edge, query, self._page_bytes)
        if child is None:
            return node, offset
        shared = self._shared_page_bytes(child, query, offset)
        if shared == child.num_tokens * BYTES_PER_TOKEN:  # child was cut to what query shares
            return child, offset + shared
        self.num_nodes += 1
        return child.split_off_head(shared, self._page_bytes), offset + shared

    def _shared_page_bytes(self, child: RadixNode, query: bytes, offset: int) -> int:
        shared = common_prefix_bytes(child.span, query, offset)
        shared = min(shared, child.num_tokens * BYTES_PER_TOKEN)
        return shared // self._page_bytes * self._page_bytes

    def _add_leaf(
        self,
        parent: RadixNode,
        query: bytes,
        offset: int,
        slots: NDArray[np.int32],
        namespace: str | None,
        priority: int,
    ) -> RadixNode:
        start = offset // BYTES_PER_TOKEN
        edge = self._edge(parent, query, offset, namespace)
        kept_slots = self._encode(slots[start:] if start else slots)
        # By place: names would cost more than looking up the edge.
        leaf = RadixNode(parent, edge, query[offset:], kept_slots, len(slots) - start)
        leaf.priority = priority
        if not parent.children:
            parent.trim()
        parent.children[edge] = leaf
        self.num_nodes += 1
        self.evictable_tokens += leaf.num_tokens
        self._order.insert(leaf)
        if parent.watches is not None:
            self.watches.leaf_added(leaf, parent)
            self.watches.settle()
        return leaf

    def _drop_leaf(self, leaf: RadixNode) -> bytes:
        """Take an unlocked leaf out of the tree and return its slots."""
        parent = leaf.parent
        assert parent is not None and not leaf.children and leaf.lock_count == 0
        del parent.children[leaf.edge]
        drop_skip_to(leaf)
        leaf.parent = None
        self._order.drop(leaf, parent)
        self.num_nodes -= 1
        if leaf.watches is not None:
            self.watches.leaf_dropped(leaf, parent)
        return leaf.used_slots()

    def _cut_leaf(self, leaf: RadixNode, num_tokens: int) -> bytes:
        """Take the last num_tokens of an unlocked leaf and return their slots."""
        if leaf.watches is not None:
            end = (leaf.num_tokens - num_tokens) * BYTES_PER_TOKEN
            self.watches.leaf_cut(leaf, leaf.span[end : end + self._page_bytes], num_tokens)
        drop_skip_to(leaf)
        return leaf.cut_tail(num_tokens)
