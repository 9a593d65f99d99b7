"""In which order the radix tree gives up its nodes.

The order is kept while the tree is used, never built when something must go. It holds every
unlocked node, inner ones too: a use of a prefix is a use of all its ancestors, marked from the end
of the prefix upwards, so a node always stands behind its descendants and the head is a leaf by
itself. That makes every step O(1) where a heap of leaves has a logarithm and stale entries.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from .radix_node import RadixNode


class LruOrder:
    """Least recently used first.

    The time a node is locked counts as use, so add() at the last unlock puts it at the recent end.
    """

    def __init__(self) -> None:
        self._nodes: OrderedDict[RadixNode, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._nodes)

    def __iter__(self) -> Iterator[RadixNode]:
        """All unlocked nodes, next to be evicted first."""
        return iter(self._nodes)

    def add(self, node: RadixNode) -> None:
        """Take in a node that is new or was just unlocked, as used now."""
        self._nodes[node] = None

    def remove(self, node: RadixNode) -> None:
        """Let go of a node that was locked or has left the tree."""
        del self._nodes[node]

    def mark_path_used(self, node: RadixNode) -> None:
        """Move node and its ancestors to the recent end, descendants first."""
        move_to_end = self._nodes.move_to_end
        at = node
        # The ancestors of a locked node are locked, and stand in no order; nor does the root.
        while at.lock_count == 0 and (parent := at.parent) is not None:
            move_to_end(at)
            at = parent

    def next_to_evict(self) -> RadixNode | None:
        """Return the node to evict first, always a leaf; None when all are locked."""
        return next(iter(self._nodes), None)

    def clear(self) -> None:
        """Forget all nodes."""
        self._nodes.clear()
