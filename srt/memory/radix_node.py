"""One node of the radix tree: an edge's token span, its slots, and who holds it."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from .token_span import BYTES_PER_TOKEN

NO_SLOTS: NDArray[np.int32] = np.empty(0, dtype=np.int32)


@dataclass(eq=False, slots=True)
class RadixNode:
    """A span of tokens below its parent, never empty but in the root.

    Only the tree changes a node. A node stands for the prefix that ends with its last token and
    goes on doing so when it is split: the new node is the upper part. parent is None for the root
    and for a node that has left the tree. edge is the node's key among its parent's children.
    """

    parent: RadixNode | None
    edge: bytes
    span: bytes  # may be longer than the tokens for a while, see cut_tail
    slots: NDArray[np.int32]
    num_tokens: int
    lock_count: int = 0
    children: dict[bytes, RadixNode] = field(default_factory=dict)

    def whole_span(self) -> bytes:
        """Return the bytes of the num_tokens tokens, and let go of what cut_tail left over."""
        num_bytes = self.num_tokens * BYTES_PER_TOKEN
        if len(self.span) != num_bytes:
            self.span = self.span[:num_bytes]
            self.slots = self.slots.copy()
        return self.span

    def cut_tail(self, num_tokens: int) -> NDArray[np.int32]:
        """Drop the last num_tokens, fewer than all, and return their slots.

        The buffers are shortened only when half of them is unused: cutting a long span bit by bit
        costs what is cut, not the span each time.
        """
        kept = self.num_tokens - num_tokens
        cut = self.slots[kept:]
        self.num_tokens = kept
        self.slots = self.slots[:kept]
        if len(self.span) >= 2 * kept * BYTES_PER_TOKEN:
            self.whole_span()
        return cut


def write_path_slots(node: RadixNode, out: NDArray[np.int32]) -> None:
    """Fill out with the slots of the last len(out) tokens of the prefix that ends at node."""
    end = len(out)
    at: RadixNode | None = node
    while end > 0:
        assert at is not None, f"prefix is {end} tokens shorter than the {len(out)} asked for"
        start = end - at.num_tokens
        if start >= 0:
            out[start:end] = at.slots
        else:
            out[:end] = at.slots[-start:]
        end = start
        at = at.parent
