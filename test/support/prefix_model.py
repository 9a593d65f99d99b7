"""A radix tree's meaning without a tree: one dictionary entry per cached page-aligned prefix.

Every page carries what each eviction policy looks at; a use or hit of a prefix is one of all its
pages. Eviction takes one last page after the other, the smallest key first. Slow and obvious.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

Prefix = tuple[str | None, tuple[int, ...]]


@dataclass
class CachedPage:
    """The last page of a prefix."""

    slots: tuple[int, ...]
    created: int
    last_use: int = 0
    num_hits: int = 0
    priority: int = -(10**9)
    locks: int = 0


KEYS: dict[str, Callable[[CachedPage], tuple[int, ...]]] = {
    "lru": lambda page: (page.last_use,),
    "lfu": lambda page: (page.num_hits, page.last_use),
    "slru": lambda page: (page.num_hits > 0, page.last_use),
    "fifo": lambda page: (page.created,),
    "priority": lambda page: (page.priority, page.last_use),
}


class PrefixModel:
    """The same promises as RadixTree, kept page by page."""

    def __init__(self, page_size: int, policy: str = "lru") -> None:
        self.page_size = page_size
        self._key = KEYS[policy]
        self.pages: dict[Prefix, CachedPage] = {}
        self._clock = 0

    def match(self, tokens: list[int], namespace: str | None, touch: bool = True) -> int:
        """Length of the longest cached prefix."""
        path = [prefix for prefix in self.prefixes(tokens, namespace) if prefix in self.pages]
        if touch:
            self._use(path)
        return len(path) * self.page_size

    def slots(self, tokens: list[int], namespace: str | None) -> list[int]:
        """Slots of a cached prefix."""
        return [
            slot for prefix in self.prefixes(tokens, namespace) for slot in self.pages[prefix].slots
        ]

    def count_hit(self, tokens: list[int], namespace: str | None) -> None:
        """A request took this prefix from the cache."""
        for prefix in self.prefixes(tokens, namespace):
            self.pages[prefix].num_hits += 1

    def insert(
        self, tokens: list[int], slots: list[int], namespace: str | None, priority: int = 0
    ) -> int:
        """Cache whole pages; return how many leading tokens were cached before."""
        already = self.match(tokens, namespace, touch=False)
        for prefix in self.prefixes(tokens, namespace):
            end = len(prefix[1])
            if end > already:
                part = tuple(slots[end - self.page_size : end])
                self.pages[prefix] = CachedPage(part, created=self._clock)
            page = self.pages[prefix]
            page.priority = max(page.priority, priority)
        self._use(self.prefixes(tokens, namespace))
        return already

    def lock(self, tokens: list[int], namespace: str | None) -> None:
        """Lock every page of a prefix once more."""
        for prefix in self.prefixes(tokens, namespace):
            self.pages[prefix].locks += 1

    def unlock(self, tokens: list[int], namespace: str | None) -> None:
        """Undo one lock; a page whose last lock goes counts as used now."""
        prefixes = self.prefixes(tokens, namespace)
        for prefix in prefixes:
            self.pages[prefix].locks -= 1
        self._use(prefixes)

    def evict(self, num_tokens: int) -> set[int]:
        """Drop unlocked pages that nothing follows, one by one; return their slots."""
        freed: set[int] = set()
        for _ in range(-(-num_tokens // self.page_size)):
            followed = {(namespace, tokens[: -self.page_size]) for namespace, tokens in self.pages}
            last = [p for p, page in self.pages.items() if page.locks == 0 and p not in followed]
            if not last:
                break
            first = min(last, key=lambda prefix: self._key(self.pages[prefix]))
            freed.update(self.pages.pop(first).slots)
        return freed

    def tokens_locked(self) -> int:
        """Tokens with a lock on them."""
        return self.page_size * sum(page.locks > 0 for page in self.pages.values())

    def tokens_unlocked(self) -> int:
        """Tokens that evict() could drop."""
        return self.page_size * sum(page.locks == 0 for page in self.pages.values())

    def prefixes(self, tokens: list[int], namespace: str | None) -> list[Prefix]:
        """Every whole-page prefix of tokens, shortest first."""
        ends = range(self.page_size, len(tokens) + 1, self.page_size)
        return [(namespace, tuple(tokens[:end])) for end in ends]

    def _use(self, prefixes: list[Prefix]) -> None:
        self._clock += 1
        for prefix in prefixes:
            if self.pages[prefix].locks == 0:
                self.pages[prefix].last_use = self._clock
