"""A radix tree's meaning without a tree: one dictionary entry per cached page-aligned prefix.

Eviction sorts all unlocked prefixes by last use, longer ones of one path first. Slow and obvious.
"""

from __future__ import annotations

from dataclasses import dataclass

Prefix = tuple[str | None, tuple[int, ...]]


@dataclass
class CachedPage:
    """The last page of a prefix."""

    slots: tuple[int, ...]
    last_use: int
    locks: int = 0


class PrefixModel:
    """The same promises as RadixTree, kept page by page."""

    def __init__(self, page_size: int) -> None:
        self.page_size = page_size
        self.pages: dict[Prefix, CachedPage] = {}
        self._clock = 0

    def match(self, tokens: list[int], namespace: str | None, touch: bool = True) -> int:
        """Length of the longest cached prefix."""
        path = [prefix for prefix in self._prefixes(tokens, namespace) if prefix in self.pages]
        if touch:
            self._use(path)
        return len(path) * self.page_size

    def slots(self, tokens: list[int], namespace: str | None) -> list[int]:
        """Slots of a cached prefix."""
        return [
            slot
            for prefix in self._prefixes(tokens, namespace)
            for slot in self.pages[prefix].slots
        ]

    def insert(self, tokens: list[int], slots: list[int], namespace: str | None) -> int:
        """Cache whole pages; return how many leading tokens were cached before."""
        already = self.match(tokens, namespace, touch=False)
        for prefix in self._prefixes(tokens, namespace):
            end = len(prefix[1])
            if end > already:
                self.pages[prefix] = CachedPage(tuple(slots[end - self.page_size : end]), 0)
        self._use(self._prefixes(tokens, namespace))
        return already

    def lock(self, tokens: list[int], namespace: str | None) -> None:
        """Lock every page of a prefix once more."""
        for prefix in self._prefixes(tokens, namespace):
            self.pages[prefix].locks += 1

    def unlock(self, tokens: list[int], namespace: str | None) -> None:
        """Undo one lock; a page whose last lock goes counts as used now."""
        prefixes = self._prefixes(tokens, namespace)
        for prefix in prefixes:
            self.pages[prefix].locks -= 1
        self._use(prefixes)

    def evict(self, num_tokens: int) -> set[int]:
        """Drop the oldest unlocked pages; return their slots."""
        oldest = sorted(
            (prefix for prefix, page in self.pages.items() if page.locks == 0),
            key=lambda prefix: (self.pages[prefix].last_use, -len(prefix[1])),
        )
        dropped = oldest[: -(-num_tokens // self.page_size)]
        return {slot for prefix in dropped for slot in self.pages.pop(prefix).slots}

    def tokens_locked(self) -> int:
        """Tokens with a lock on them."""
        return self.page_size * sum(page.locks > 0 for page in self.pages.values())

    def tokens_unlocked(self) -> int:
        """Tokens that evict() could drop."""
        return self.page_size * sum(page.locks == 0 for page in self.pages.values())

    def _prefixes(self, tokens: list[int], namespace: str | None) -> list[Prefix]:
        ends = range(self.page_size, len(tokens) + 1, self.page_size)
        return [(namespace, tuple(tokens[:end])) for end in ends]

    def _use(self, prefixes: list[Prefix]) -> None:
        self._clock += 1
        for prefix in prefixes:
            if self.pages[prefix].locks == 0:
                self.pages[prefix].last_use = self._clock
