"""One node of the radix tree: an edge's token span, its slots, and who holds it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from .token_span import BYTES_PER_TOKEN

if TYPE_CHECKING:
    from .path_walk import Skip
    from .prefix_watch import WatchPlace

BYTES_PER_SLOT = 4


@dataclass(eq=False, repr=False, slots=True)
class RadixNode:
    """A span of tokens below its parent, never empty but in the root.

    Only the tree and the parts it hands a node to (eviction order, watches, pins) change a node. A
    node stands for the prefix that ends with its last token and goes on doing so when it is split:
    the new node is the upper part. parent is None for the root and for a node that has left the
    tree. edge is the node's key among its parent's children.

    lock_count is the number of locks on this very prefix plus the number of locked children, so
    a lock walks up only as far as it changes something; pin_count is the same for pins.
    The fields from num_hits to is_queued are the eviction order's, watches and the skips those of
    the files of these names.
    """

    parent: RadixNode | None
    edge: bytes
    span: bytes  # int32 tokens; in a childless node there may be more for a while, see cut_tail
    slots: bytes  # int32 slots, as many as span has tokens
    num_tokens: int
    lock_count: int = 0
    children: dict[bytes, RadixNode] = field(default_factory=dict)
    num_hits: int = 0
    last_use: int = 0
    created: int = 0
    priority: int = 0
    is_queued: bool = False
    pin_count: int = 0
    watches: dict[bytes, WatchPlace] | None = None
    skip_down: Skip | None = None  # from here to a node below
    skip_up: Skip | None = None  # from a node above to here

    def __repr__(self) -> str:
        return (
            f"RadixNode({self.num_tokens} tokens, edge {self.edge!r}, {self.lock_count} locks, "
            f"{len(self.children)} children)"
        )

    def trim(self) -> None:
        """Let go of what cut_tail left over in the buffers."""
        num_bytes = self.num_tokens * BYTES_PER_TOKEN
        if len(self.span) != num_bytes:
            self.span = self.span[:num_bytes]
            self.slots = self.slots[:num_bytes]

    def split_off_head(self, num_bytes: int, page_bytes: int) -> RadixNode:
        """Give the first num_bytes of the span to a new parent in this node's place; return that.

        The new node has no hit and no use of its own: those of this node are its own too.
        """
        parent = self.parent
        assert parent is not None, "the root has no span to split"
        self.trim()
        num_tokens = num_bytes // BYTES_PER_TOKEN
        upper = RadixNode(
            parent=parent,
            edge=self.edge,
            span=self.span[:num_bytes],
            slots=self.slots[: num_tokens * BYTES_PER_SLOT],
            num_tokens=num_tokens,
            lock_count=int(self.lock_count > 0),
            created=self.created,
            priority=self.priority,
            pin_count=int(self.pin_count > 0),
        )
        parent.children[upper.edge] = upper
        self.parent = upper
        self.span = self.span[num_bytes:]
        self.edge = self.span[:page_bytes]
        self.slots = self.slots[num_tokens * BYTES_PER_SLOT :]
        self.num_tokens -= num_tokens
        upper.children[self.edge] = self
        return upper

    def cut_tail(self, num_tokens: int) -> bytes:
        """Drop the last num_tokens, fewer than all, and return their slots.

        The buffers are shortened only when half of them is unused: cutting a long span bit by bit
        costs what is cut, not the span each time.
        """
        kept = self.num_tokens - num_tokens
        cut = self.slots[kept * BYTES_PER_SLOT : self.num_tokens * BYTES_PER_SLOT]
        self.num_tokens = kept
        if len(self.span) >= 2 * kept * BYTES_PER_TOKEN:
            self.trim()
        return cut

    def used_slots(self) -> bytes:
        """Return the slots of the num_tokens tokens."""
        num_bytes = self.num_tokens * BYTES_PER_SLOT
        return self.slots if len(self.slots) == num_bytes else self.slots[:num_bytes]


def slots_array(parts: list[bytes]) -> NDArray[np.int32]:
    """Return slots kept in pieces as one array, read-only."""
    return np.frombuffer(parts[0] if len(parts) == 1 else b"".join(parts), dtype=np.int32)
