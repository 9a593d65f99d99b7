"""Token-span radix tree over KV slots.

Maps token sequences to the slots that hold their keys and values. Knows nothing of requests or
devices: slots are integers. Only unlocked leaves are evicted, oldest use first, and a long leaf
from its tail, so a cached prefix never loses its middle. No operation looks at more than one path
and what it frees.
Source: RadixAttention (Zheng et al., 2024, section 3).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .eviction_order import LruOrder
from .radix_node import NO_SLOTS, RadixNode, write_path_slots
from .token_span import BYTES_PER_TOKEN, common_prefix_bytes


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """The longest cached prefix: its length and the node where it ends (the root for 0)."""

    num_tokens: int
    node: RadixNode

    def slots(self) -> NDArray[np.int32]:
        """Return a new array of the prefix's slots, in token order."""
        out = np.empty(self.num_tokens, dtype=np.int32)
        write_path_slots(self.node, out)
        return out


@dataclass(frozen=True, slots=True)
class InsertResult:
    """How many leading tokens stood in the tree before, and the node where all of them now end."""

    num_already_cached: int
    node: RadixNode


class RadixTree:
    """A tree of whole pages; free_slots takes back the slots of what is evicted or flushed."""

    def __init__(self, page_size: int, free_slots: Callable[[NDArray[np.int32]], None]) -> None:
        self.page_size = page_size
        self.root = RadixNode(parent=None, edge=b"", span=b"", slots=NO_SLOTS, num_tokens=0)
        self.evictable_tokens = 0
        self.protected_tokens = 0
        self.evicted_tokens_total = 0
        self.num_nodes = 0
        self.order = LruOrder()
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

        May split a node and marks the path as used now. Slots and node stay valid only while the
        node is locked (see lock) or until the next call that evicts.
        """
        query = self._encode(token_ids)
        node, matched = self._descend_and_split(self.root, query, namespace)
        self.order.mark_path_used(node)
        return PrefixMatch(matched // BYTES_PER_TOKEN, node)

    def peek_prefix_length(self, token_ids: NDArray[np.int32], namespace: str | None = None) -> int:
        """Return what match_prefix would find, in tokens, and change nothing."""
        query = self._encode(token_ids)
        node, matched = self._descend(self.root, query, namespace)
        child = node.children.get(self._edge(node, query, matched, namespace))
        if child is not None:
            matched += self._shared_page_bytes(child, query, matched)
        return matched // BYTES_PER_TOKEN

    def insert(
        self, token_ids: NDArray[np.int32], slots: NDArray[np.int32], namespace: str | None = None
    ) -> InsertResult:
        """Put a sequence of whole pages in the tree and mark its path as used now.

        The tree copies and owns slots[num_already_cached:]; the slots before are duplicates that
        stay the caller's to free.
        """
        return self.insert_below(self.root, token_ids, slots, namespace)

    def insert_below(
        self,
        start: RadixNode,
        token_ids: NDArray[np.int32],
        slots: NDArray[np.int32],
        namespace: str | None = None,
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
            node = self._add_leaf(node, query, matched, slots, namespace)
        self.order.mark_path_used(node)
        return InsertResult(matched // BYTES_PER_TOKEN, node)

    def lock(self, node: RadixNode) -> None:
        """Protect the prefix that ends at node from eviction, until one unlock(node) per lock."""
        self.extend_lock(self.root, node)

    def extend_lock(self, held: RadixNode, node: RadixNode) -> None:
        """Turn the caller's lock on held into one on node, a descendant of held or held itself."""
        at = node
        while at is not held:
            assert at.parent is not None, "node is not below the held one, or has left the tree"
            at.lock_count += 1
            if at.lock_count == 1:
                self.order.remove(at)
                self.evictable_tokens -= at.num_tokens
                self.protected_tokens += at.num_tokens
            at = at.parent

    def unlock(self, node: RadixNode) -> None:
        """Undo one lock(node). What nobody locks any more counts as used now."""
        at = node
        while at.parent is not None:
            assert at.lock_count > 0, f"unlock of a prefix with lock count {at.lock_count}"
            at.lock_count -= 1
            if at.lock_count == 0:
                self.order.add(at)
                self.evictable_tokens += at.num_tokens
                self.protected_tokens -= at.num_tokens
            at = at.parent
        assert at is self.root, "unlock of a node that has left the tree"

    def evict(self, num_tokens: int) -> int:
        """Free at least num_tokens if so many are evictable, else all that are; return how many.

        Frees num_tokens rounded up to a page, no more: the last leaf gives only its tail.
        """
        freed: list[NDArray[np.int32]] = []
        num_freed = 0
        while num_freed < num_tokens:
            leaf = self.order.next_to_evict()
            if leaf is None:
                break
            wanted = -(-(num_tokens - num_freed) // self.page_size) * self.page_size
            cut = self._drop_leaf(leaf) if leaf.num_tokens <= wanted else leaf.cut_tail(wanted)
            freed.append(cut)
            num_freed += len(cut)
        if freed:
            self.evictable_tokens -= num_freed
            self.evicted_tokens_total += num_freed
            self._free_slots(freed[0] if len(freed) == 1 else np.concatenate(freed))
        return num_freed

    def flush(self) -> None:
        """Free everything. Nothing may be locked."""
        assert self.protected_tokens == 0, (
            f"flush with {self.protected_tokens} tokens locked, {self.evictable_tokens} evictable"
        )
        nodes = list(self.order)
        for node in nodes:  # cut the links, so that no deep chain is torn down recursively
            node.parent = None
            node.children = {}
        self.root.children = {}
        self.order.clear()
        self.evictable_tokens = 0
        self.num_nodes = 0
        if nodes:
            self._free_slots(np.concatenate([node.slots for node in nodes]))

    def check_invariants(self) -> None:
        """Assert that structure, counters and eviction order agree; O(nodes), for tests."""
        place = {node: index for index, node in enumerate(self.order)}
        num_nodes = evictable = protected = 0
        pending = [self.root]
        while pending:
            node = pending.pop()
            pending.extend(node.children.values())
            self._check_children(node, place)
            if node is self.root:
                continue
            num_nodes += 1
            assert (node in place) == (node.lock_count == 0), f"order or lock wrong: {node.edge!r}"
            if node.lock_count == 0:
                evictable += node.num_tokens
            else:
                protected += node.num_tokens
        assert num_nodes == self.num_nodes, f"{num_nodes} nodes, counted {self.num_nodes}"
        assert len(place) <= num_nodes, f"{len(place)} nodes in the order, {num_nodes} in the tree"
        assert (evictable, protected) == (self.evictable_tokens, self.protected_tokens), (
            f"evictable {evictable}, protected {protected}; "
            f"counted {self.evictable_tokens}, {self.protected_tokens}"
        )

    def all_slots(self) -> NDArray[np.int32]:
        """Return the slots of all nodes, in no stated order; for tests."""
        found = [NO_SLOTS]
        pending = [self.root]
        while pending:
            node = pending.pop()
            pending.extend(node.children.values())
            found.append(node.slots)
        return np.concatenate(found)

    def _check_children(self, node: RadixNode, place: dict[RadixNode, int]) -> None:
        locks = 0
        for edge, child in node.children.items():
            assert child.parent is node and child.edge == edge, f"broken link at {edge!r}"
            assert edge[: self._page_bytes] == child.span[: self._page_bytes], f"edge {edge!r}"
            assert child.num_tokens > 0 and child.num_tokens % self.page_size == 0, (
                f"node of {child.num_tokens} tokens with pages of {self.page_size}"
            )
            assert len(child.slots) == child.num_tokens <= len(child.span) // BYTES_PER_TOKEN
            assert child.lock_count >= 0, f"lock count {child.lock_count}"
            if node in place:
                assert place[child] < place[node], f"node before its descendant: {edge!r}"
            locks += child.lock_count
        if node is not self.root:
            assert node.lock_count >= locks, f"lock count {node.lock_count}, children's {locks}"

    def _encode(self, token_ids: NDArray[np.int32]) -> bytes:
        num_tokens = len(token_ids) // self.page_size * self.page_size
        return token_ids[:num_tokens].astype(np.int32, copy=False).tobytes()

    def _edge(self, node: RadixNode, query: bytes, offset: int, namespace: str | None) -> bytes:
        page = query[offset : offset + self._page_bytes]
        if node is self.root and namespace is not None:
            return (
                page + b"/" + namespace.encode("utf-8", "surrogatepass")
            )  # longer than any page: never equal to None's
        return page

    def _descend(
        self, start: RadixNode, query: bytes, namespace: str | None
    ) -> tuple[RadixNode, int]:
        """Go down as far as whole spans match; return the last node and the bytes matched."""
        node, offset = start, 0
        page_bytes = self._page_bytes
        child = node.children.get(self._edge(node, query, 0, namespace))
        while child is not None:
            span = child.span
            if len(span) != child.num_tokens * BYTES_PER_TOKEN:
                span = child.whole_span()
            if not query.startswith(span, offset):
                break
            offset += len(span)
            node = child
            child = node.children.get(query[offset : offset + page_bytes])
        return node, offset

    def _descend_and_split(
        self, start: RadixNode, query: bytes, namespace: str | None
    ) -> tuple[RadixNode, int]:
        """_descend, and split the child that matches in part, so that the match ends at a node."""
        node, offset = self._descend(start, query, namespace)
        if offset == len(query):
            return node, offset
        child = node.children.get(self._edge(node, query, offset, namespace))
        if child is None:
            return node, offset
        shared = self._shared_page_bytes(child, query, offset)
        return self._split(child, shared), offset + shared

    def _shared_page_bytes(self, child: RadixNode, query: bytes, offset: int) -> int:
        shared = common_prefix_bytes(child.whole_span(), query, offset)
        return shared // self._page_bytes * self._page_bytes

    def _split(self, node: RadixNode, num_bytes: int) -> RadixNode:
        """Give node's first num_bytes to a new parent of it, and return that."""
        parent = node.parent
        assert parent is not None, "the root has no span to split"
        span, num_tokens = node.whole_span(), num_bytes // BYTES_PER_TOKEN
        upper = RadixNode(
            parent=parent,
            edge=node.edge,
            span=span[:num_bytes],
            slots=node.slots[:num_tokens].copy(),  # copies: a view would keep the whole buffer
            num_tokens=num_tokens,
            lock_count=node.lock_count,
        )
        parent.children[upper.edge] = upper
        node.parent = upper
        node.span = span[num_bytes:]
        node.edge = node.span[: self._page_bytes]
        node.slots = node.slots[num_tokens:].copy()
        node.num_tokens -= num_tokens
        upper.children[node.edge] = node
        self.num_nodes += 1
        if upper.lock_count == 0:
            self.order.add(upper)  # the caller marks the path as used, which keeps the order
        return upper

    def _add_leaf(
        self,
        parent: RadixNode,
        query: bytes,
        offset: int,
        slots: NDArray[np.int32],
        namespace: str | None,
    ) -> RadixNode:
        start = offset // BYTES_PER_TOKEN
        leaf = RadixNode(
            parent=parent,
            edge=self._edge(parent, query, offset, namespace),
            span=query[offset:],
            slots=slots[start:].astype(np.int32),
            num_tokens=len(slots) - start,
        )
        parent.children[leaf.edge] = leaf
        self.num_nodes += 1
        self.evictable_tokens += leaf.num_tokens
        self.order.add(leaf)
        return leaf

    def _drop_leaf(self, leaf: RadixNode) -> NDArray[np.int32]:
        """Take an unlocked leaf out of the tree and return its slots."""
        assert leaf.parent is not None and not leaf.children and leaf.lock_count == 0
        del leaf.parent.children[leaf.edge]
        leaf.parent = None
        self.order.remove(leaf)
        self.num_nodes -= 1
        return leaf.slots
