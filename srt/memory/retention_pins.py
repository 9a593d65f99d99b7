"""Retention pins: prefixes that stay cached until a stated time, within a share of the pool.

A pin is a lock with an expiry. It holds what is cached of its prefix when it is made, no more and
no less: pin again after the rest has been computed. Pins may overlap; a token counts once.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from itertools import count

from ..errors import Overloaded
from .radix_node import RadixNode
from .radix_tree import PrefixMatch, RadixTree


@dataclass(eq=False, slots=True)
class RetentionPin:
    """The first num_tokens of some prefix, kept until expiry_seconds on the scheduler's clock."""

    num_tokens: int
    expiry_seconds: float
    node: RadixNode | None  # None once it is released


class RetentionPins:
    """All pins on a tree; together they hold at most limit_tokens."""

    def __init__(self, tree: RadixTree, limit_tokens: int) -> None:
        self.limit_tokens = limit_tokens
        self.pinned_tokens = 0
        self._tree = tree
        self._by_expiry: list[tuple[float, int, RetentionPin]] = []
        self._numbers = count()

    def add(self, match: PrefixMatch, expiry_seconds: float) -> RetentionPin:
        """Pin a match; Overloaded, with nothing changed, when it does not fit in the share."""
        wanted = _num_unpinned_tokens(match.node)
        if self.pinned_tokens + wanted > self.limit_tokens:
            raise Overloaded(
                f"pinning {wanted} more tokens exceeds the share of the KV pool for pins: "
                f"{self.pinned_tokens} of at most {self.limit_tokens} tokens are pinned; wait for "
                "a pin to expire or pin a shorter prefix"
            )
        self._tree.lock(match.node)
        self.pinned_tokens += _count_pin(match.node)
        pin = RetentionPin(match.num_tokens, expiry_seconds, match.node)
        heapq.heappush(self._by_expiry, (expiry_seconds, next(self._numbers), pin))
        return pin

    def release(self, pin: RetentionPin) -> None:
        """Let go of a pin before its time; does nothing for one that is released already."""
        if pin.node is None:
            return
        self.pinned_tokens -= _uncount_pin(pin.node)
        self._tree.unlock(pin.node)
        pin.node = None

    def release_expired(self, now_seconds: float) -> None:
        """Let go of every pin whose time has come; O(1) when there is none."""
        while self._by_expiry and self._by_expiry[0][0] <= now_seconds:
            self.release(heapq.heappop(self._by_expiry)[2])

    def release_all(self) -> None:
        """Let go of every pin."""
        for _, _, pin in self._by_expiry:
            self.release(pin)
        self._by_expiry.clear()


def _num_unpinned_tokens(node: RadixNode) -> int:
    num_tokens = 0
    at = node
    while at.parent is not None and at.pin_count == 0:
        num_tokens += at.num_tokens
        at = at.parent
    return num_tokens


def _count_pin(node: RadixNode) -> int:
    """Count one pin more at node; return how many tokens no pin held before."""
    num_tokens = 0
    at = node
    while at.parent is not None:
        at.pin_count += 1
        if at.pin_count > 1:
            break
        num_tokens += at.num_tokens
        at = at.parent
    return num_tokens


def _uncount_pin(node: RadixNode) -> int:
    """Undo _count_pin(node); return how many tokens no pin holds any more."""
    num_tokens = 0
    at = node
    while at.parent is not None:
        at.pin_count -= 1
        if at.pin_count > 0:
            break
        num_tokens += at.num_tokens
        at = at.parent
    return num_tokens
