"""Watches on prefixes of waiting requests: who is told when a cached prefix grows or shrinks.

A watch stands at the node where its match ends, under the next page that is not cached there: its
place. A new leaf below a node concerns the watches under the leaf's own edge only; a leaf that goes
or is cut concerns the watches at that leaf only. Nobody else is looked at, so keeping any number of
waiting requests up to date costs what changed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from .radix_node import RadixNode
from .token_span import BYTES_PER_TOKEN

FindEnd = Callable[[RadixNode, bytes, str | None], tuple[RadixNode, int]]
EdgeOf = Callable[[RadixNode, bytes, int, str | None], bytes]

_NOTHING_LEFT = b""  # stands for the next page of a watch that is matched to its limit


@dataclass(eq=False, slots=True)
class PrefixWatch:
    """How much of token_ids is cached; num_matched and group are kept right by KvMemory.

    num_matched is what peek_prefix_length(token_ids) would return, token_ids being cut to the
    watch's limit. group is equal for two watches if and only if their matches end at the same
    place in the tree and the next page is the same, that is, they share at least one page that is
    still to be computed; None when no whole page is left below the limit.
    """

    token_ids: NDArray[np.int32]  # whole pages; the owner must not change them
    namespace: str | None
    on_change: Callable[[PrefixWatch], None]
    num_matched: int = 0
    group: Hashable | None = None
    place: WatchPlace | None = None  # None once it is no longer kept


@dataclass(eq=False, slots=True)
class WatchPlace:
    """The watches whose match ends at node and whose next page is edge."""

    node: RadixNode
    edge: bytes
    num_matched: int
    watches: dict[PrefixWatch, None] = field(default_factory=dict, repr=False)


class WatchTable:
    """All watches on one tree, which reports each change here and then calls settle().

    find_end(node, query, namespace) goes down from node and splits where the match ends.
    """

    def __init__(self, page_size: int, root: RadixNode, find_end: FindEnd, edge_of: EdgeOf) -> None:
        self._page_size = page_size
        self._root = root
        self._find_end = find_end
        self._edge_of = edge_of
        self._grown: list[tuple[WatchPlace, int]] = []
        self._moved: dict[WatchPlace, None] = {}
        self._replaced: dict[PrefixWatch, None] = {}
        # Taken from the front: a dict would pass over all it has already given out.
        self._changed: OrderedDict[PrefixWatch, None] = OrderedDict()

    def add(
        self,
        token_ids: NDArray[np.int32],
        namespace: str | None,
        on_change: Callable[[PrefixWatch], None],
    ) -> PrefixWatch:
        """Keep a new watch on token_ids, which stays the caller's and must not change."""
        whole = len(token_ids) // self._page_size * self._page_size
        watch = PrefixWatch(token_ids[:whole], namespace, on_change)
        node, num_bytes = self._find_end(self._root, watch.token_ids.tobytes(), namespace)
        place = self._put(watch, node, num_bytes // BYTES_PER_TOKEN)
        watch.num_matched, watch.group = place.num_matched, _group(place)
        return watch

    def remove(self, watch: PrefixWatch) -> None:
        """Stop keeping watch; its fields stay as they are and on_change is not called again."""
        place = watch.place
        if place is None:
            return
        watch.place = None
        del place.watches[watch]
        self._changed.pop(watch, None)
        if not place.watches:
            _take_out(place)

    def group_below(
        self, node: RadixNode, token_ids: NDArray[np.int32], namespace: str | None
    ) -> Hashable | None:
        """Return the group of a watch on the prefix of node, continued by token_ids."""
        page_size = self._page_size
        if len(token_ids) < page_size:
            return None
        edge = self._edge_of(node, token_ids[:page_size].tobytes(), 0, namespace)
        if edge in node.children:
            whole = len(token_ids) // page_size * page_size
            query = token_ids[:whole].tobytes()
            node, offset = self._find_end(node, query, namespace)
            if offset == len(query):
                return None
            edge = self._edge_of(node, query, offset, namespace)
        return (node, edge)

    # What the tree reports

    def leaf_added(self, leaf: RadixNode, parent: RadixNode) -> None:
        """A leaf was added to parent, which has watches."""
        assert parent.watches is not None
        place = parent.watches.get(leaf.edge)
        if place is not None:
            _take_out(place)
            self._grown.append((place, leaf.num_tokens))

    def leaf_dropped(self, leaf: RadixNode, parent: RadixNode) -> None:
        """A leaf with watches was taken from under parent."""
        place = self._merge(leaf)
        self._shrink(place, parent, leaf.edge, leaf.num_tokens)

    def leaf_cut(self, leaf: RadixNode, first_page_cut: bytes, num_tokens: int) -> None:
        """A leaf with watches lost its last num_tokens."""
        self._shrink(self._merge(leaf), leaf, first_page_cut, num_tokens)

    def flushed(self, nodes: list[RadixNode]) -> None:
        """All nodes have left the tree."""
        for node in nodes:
            places = node.watches or {}
            node.watches = None
            for place in places.values():
                for watch in place.watches:
                    self._put(watch, self._root, 0)
                    self._replaced[watch] = None

    def settle(self) -> None:
        """Match again where leaves were added, and bring the fields of all watches up to date."""
        for place, num_added in self._grown:
            start = place.num_matched
            for watch in place.watches:
                # Below the place stands the new leaf only: no need to look beyond its length.
                query = watch.token_ids[start : start + num_added].tobytes()
                node, num_bytes = self._find_end(place.node, query, watch.namespace)
                self._put(watch, node, start + num_bytes // BYTES_PER_TOKEN)
                self._replaced[watch] = None
        for place in self._moved:
            self._replaced.update(place.watches)
        for watch in self._replaced:
            self._update(watch)
        self._grown.clear()
        self._moved.clear()
        self._replaced.clear()

    @property
    def is_settled(self) -> bool:
        """Whether nothing was reported since settle()."""
        return not (self._grown or self._moved or self._replaced)

    @property
    def has_news(self) -> bool:
        """Whether fire() has anybody to call."""
        return bool(self._changed)

    def fire(self) -> None:
        """Call on_change of every watch that changed, once each; it may add and remove watches."""
        while self._changed:
            watch, _ = self._changed.popitem(last=False)
            watch.on_change(watch)

    def _update(self, watch: PrefixWatch) -> None:
        place = watch.place
        assert place is not None, "a removed watch is still placed"
        group = _group(place)
        if watch.num_matched != place.num_matched or watch.group != group:
            watch.num_matched, watch.group = place.num_matched, group
            self._changed[watch] = None

    def _put(self, watch: PrefixWatch, node: RadixNode, num_matched: int) -> WatchPlace:
        page = watch.token_ids[num_matched : num_matched + self._page_size].tobytes()
        edge = self._edge_of(node, page, 0, watch.namespace) if page else _NOTHING_LEFT
        if node.watches is None:
            node.watches = {}
        place = node.watches.get(edge)
        if place is None:
            place = node.watches[edge] = WatchPlace(node, edge, num_matched)
        place.watches[watch] = None
        watch.place = place
        return place

    def _merge(self, leaf: RadixNode) -> WatchPlace:
        """Take all watches from leaf and return them as one place, the largest of theirs."""
        assert leaf.watches
        places = sorted(leaf.watches.values(), key=lambda place: -len(place.watches))
        leaf.watches = None
        largest = places[0]
        for place in places[1:]:
            for watch in place.watches:
                watch.place = largest
            largest.watches.update(place.watches)
        return largest

    def _shrink(self, place: WatchPlace, node: RadixNode, edge: bytes, num_tokens: int) -> None:
        """Set place up at node: its watches match num_tokens less, and edge is what they lost."""
        place.node, place.edge = node, edge
        place.num_matched -= num_tokens
        if node.watches is None:
            node.watches = {}
        assert edge not in node.watches, f"watches under an edge that was cached: {edge!r}"
        node.watches[edge] = place
        self._moved[place] = None


def _group(place: WatchPlace) -> Hashable | None:
    return None if place.edge == _NOTHING_LEFT else (place.node, place.edge)


def _take_out(place: WatchPlace) -> None:
    watches = place.node.watches
    assert watches is not None and watches[place.edge] is place, f"place lost: {place.edge!r}"
    del watches[place.edge]
    if not watches:
        place.node.watches = None
