"""dfs-weight: down the tree, the branch that most wait for first, its ends before its root.

The branches change with every insert and eviction, so no order of them is kept. Kept are the places
in the tree where requests wait: a walk costs the number of places and their depth, however many
requests wait at one.
"""

from __future__ import annotations

from collections.abc import Generator

from ..memory.radix_node import RadixNode
from .request import Request

_Place = RadixNode | None  # None without a cache


class DepthFirstByWeight:
    """Orders requests of one rank; at one place the first to arrive goes first."""

    def __init__(self) -> None:
        self._waiting_at: dict[_Place, dict[Request, None]] = {}
        self._place_of: dict[Request, _Place] = {}

    def add(self, request: Request) -> None:
        """Take request in."""
        place = self._place_of[request] = request.cached_node
        self._waiting_at.setdefault(place, {})[request] = None

    def remove(self, request: Request) -> None:
        """Let request go."""
        place = self._place_of.pop(request)
        waiting = self._waiting_at[place]
        del waiting[request]
        if not waiting:
            del self._waiting_at[place]

    def changed(self, request: Request) -> None:
        """Put request where its cached prefix ends now."""
        if request.cached_node is not self._place_of[request]:
            self.remove(request)
            self.add(request)

    def walk(self) -> Generator[Request, None, None]:
        """Yield requests from the first on; those yielded may leave meanwhile."""
        weights, children, root = self._branches()
        pending: list[tuple[_Place, bool]] = [(root, False)]
        while pending:
            place, is_left = pending.pop()
            if is_left:
                waiting = self._waiting_at.get(place, {})
                yield from sorted(waiting, key=lambda request: request.number)
                continue
            pending.append((place, True))
            below = sorted(children.get(place, ()), key=lambda child: weights[child])
            pending.extend((child, False) for child in below)

    def _branches(
        self,
    ) -> tuple[dict[RadixNode, int], dict[_Place, list[RadixNode]], _Place]:
        """Return how many wait at or below each node, its children of those nodes, and the root."""
        weights: dict[RadixNode, int] = {}
        children: dict[_Place, list[RadixNode]] = {}
        root: _Place = None
        for place, waiting in self._waiting_at.items():
            node, num_waiting = place, len(waiting)
            while node is not None:
                weight = weights.get(node)
                weights[node] = num_waiting + (weight or 0)
                parent = node.parent
                if parent is None:
                    root = node
                elif weight is None:
                    children.setdefault(parent, []).append(node)
                node = parent
        return weights, children, root
