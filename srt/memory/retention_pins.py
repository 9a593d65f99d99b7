"""Retention pins: prefixes that stay cached until a stated time, within a share of the pool.

A pin is a lock with an expiry. It holds what is cached of its prefix when it is made, no more and
no less: pin again after the rest has been computed. Pins may overlap; a token counts once. Knows
nothing of requests: whoever pins keeps the pin.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from itertools import count

from ..errors import BadRequest
from .radix_node import RadixNode
from .radix_tree import PrefixMatch, RadixTree


@dataclass(eq=False, slots=True)
class RetentionPin:
    """The first num_tokens of some prefix, kept until expiry_seconds on the scheduler's clock."""

    num_tokens: int
    expiry_seconds: float
    node: RadixNode | None  # None once it is released

    @property
    def is_released(self) -> bool:
        """Whether it holds nothing any more."""
        return self.node is None


class RetentionPins:
    """All pins on a tree; together they hold at most limit_tokens."""

    def __init__(self, tree: RadixTree, limit_tokens: int) -> None:
        self.limit_tokens = limit_tokens
        self.pinned_tokens = 0
        self.num_pins = 0  # not yet released
        self._tree = tree
        self._by_expiry: list[tuple[float, int, RetentionPin]] = []
        self._numbers = count()

    @property
    def num_remembered(self) -> int:
        """Entries kept: the pins, and as many that were released before their time at most."""
        return len(self._by_expiry)

    def add(self, match: PrefixMatch, expiry_seconds: float) -> RetentionPin:
        """Pin a match; BadRequest, with nothing changed, when it does not fit in the share."""
        self.check_room(match, match.num_tokens)
        self._tree.lock(match.node)
        self.pinned_tokens += _count_pin(match.node)
        self.num_pins += 1
        pin = RetentionPin(match.num_tokens, expiry_seconds, match.node)
        heapq.heappush(self._by_expiry, (expiry_seconds, next(self._numbers), pin))
        return pin

    def check_room(self, match: PrefixMatch, num_tokens: int) -> None:
        """Raise BadRequest unless a prefix of num_tokens, cached up to match, could be pinned."""
        wanted = num_tokens - match.num_tokens + _num_unpinned_tokens(match.node)
        if self.pinned_tokens + wanted > self.limit_tokens:
            raise BadRequest(
                f"pinning {wanted} more tokens exceeds the share of the KV pool for pins: "
                f"{self.pinned_tokens} of at most {self.limit_tokens} tokens are pinned; wait for "
                "a pin to expire, unpin one, or pin a shorter prefix",
                code="pin_share_exceeded",
            )

    def release(self, pin: RetentionPin) -> None:
        """Let go of a pin before its time; does nothing for one that is released already."""
        if pin.node is None:
            return
        self._let_go(pin, pin.node)
        if len(self._by_expiry) > 2 * self.num_pins + 64:  # most of them wait for nothing
            self._by_expiry = [place for place in self._by_expiry if not place[2].is_released]
            heapq.heapify(self._by_expiry)

    def release_expired(self, now_seconds: float) -> None:
        """Let go of every pin whose time has come; O(1) when there is none."""
        while self._by_expiry and self._by_expiry[0][0] <= now_seconds:
            pin = heapq.heappop(self._by_expiry)[2]
            if pin.node is not None:
                self._let_go(pin, pin.node)

    def release_all(self) -> None:
        """Let go of every pin."""
        for _, _, pin in self._by_expiry:
            if pin.node is not None:
                self._let_go(pin, pin.node)
        self._by_expiry.clear()

    def _let_go(self, pin: RetentionPin, node: RadixNode) -> None:
        self.pinned_tokens -= _uncount_pin(node)
        self._tree.unlock(node)
        self.num_pins -= 1
        pin.node = None


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
