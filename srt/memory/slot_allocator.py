"""Page-wise allocator of KV slots.

Hands out slot numbers, nothing else: it holds no tensor and knows neither the tree nor requests.
Page 0 (slots 0 to page_size - 1) is a dummy that padded writes may hit; it is never handed out.
Last freed, first reused, so the part of the pool that is ever touched stays as small as the load.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_FREE = 0
_ALLOCATED = 1


class SlotAllocator:
    """num_slots_total usable slots, a whole number of pages, numbered from page_size upwards."""

    def __init__(self, num_slots_total: int, page_size: int) -> None:
        assert page_size >= 1, f"page_size is {page_size}, must be at least 1"
        assert num_slots_total % page_size == 0, (
            f"{num_slots_total} slots are not a whole number of pages of {page_size}"
        )
        self.page_size = page_size
        self.num_slots_total = num_slots_total
        self._num_pages = num_slots_total // page_size
        # A stack whose top is its end: the lowest pages leave first, in rising order.
        self._free_pages: NDArray[np.int32] = np.arange(self._num_pages, 0, -1, dtype=np.int32)
        self._num_free_pages = self._num_pages
        self._page_state: NDArray[np.int32] = np.zeros(self._num_pages + 1, dtype=np.int32)
        self._within_page: NDArray[np.int32] = np.arange(page_size, dtype=np.int32)

    @property
    def available_tokens(self) -> int:
        """Slots that allocate() can still hand out."""
        return self._num_free_pages * self.page_size

    def allocate(self, num_pages: int) -> NDArray[np.int32] | None:
        """Return the slots of num_pages pages, page after page, or None and change nothing."""
        first = self._num_free_pages - num_pages
        if first < 0:
            return None
        if num_pages == 1:  # a decode step's case: no index array
            pages = self._free_pages[first : first + 1].copy()
            self._page_state[pages[0]] = _ALLOCATED
        else:
            pages = self._free_pages[first : self._num_free_pages][::-1].copy()
            self._page_state[pages] = _ALLOCATED
        self._num_free_pages = first
        if self.page_size == 1:
            return pages
        return self._slots_of(pages)

    def free(self, slots: NDArray[np.int32]) -> None:
        """Take back whole pages; each page's slots stand together, in rising order.

        Asserts that every slot was handed out by allocate() and not freed since.
        """
        if len(slots) == 0:
            return
        pages = slots if self.page_size == 1 else self._whole_pages_of(slots)
        self._mark_free(pages)
        end = self._num_free_pages + len(pages)
        self._free_pages[self._num_free_pages : end] = pages[::-1]
        self._num_free_pages = end

    def check_invariants(self) -> None:
        """Assert that the stack of free pages and the state of each page agree. O(pages)."""
        free = self._free_pages[: self._num_free_pages]
        counts = np.bincount(free, minlength=self._num_pages + 1)
        assert counts[0] == 0, "the dummy page 0 is in the free list"
        assert counts.max(initial=0) <= 1, f"pages free twice: {np.flatnonzero(counts > 1)}"
        allocated = counts[1:] == 0
        wrong = np.flatnonzero(self._page_state[1:] != np.where(allocated, _ALLOCATED, _FREE)) + 1
        assert len(wrong) == 0, f"state and free list disagree on pages {wrong}"

    def free_slots(self) -> NDArray[np.int32]:
        """All slots that are free now, in no stated order; for checks."""
        return self._slots_of(self._free_pages[: self._num_free_pages])

    def _slots_of(self, pages: NDArray[np.int32]) -> NDArray[np.int32]:
        return (pages[:, None] * np.int32(self.page_size) + self._within_page).reshape(-1)

    def _whole_pages_of(self, slots: NDArray[np.int32]) -> NDArray[np.int32]:
        assert len(slots) % self.page_size == 0, (
            f"freeing {len(slots)} slots, not a whole number of pages of {self.page_size}"
        )
        pages = slots[:: self.page_size] // np.int32(self.page_size)
        assert (self._slots_of(pages) == slots).all(), f"not whole pages: slots {slots}"
        return pages

    def _mark_free(self, pages: NDArray[np.int32]) -> None:
        lowest, highest = pages.min(), pages.max()
        assert lowest >= 1 and highest <= self._num_pages, (
            f"foreign page in {pages}: pages are 1 to {self._num_pages}"
        )
        states = self._page_state[pages]
        assert states.all(), f"double free of pages {pages[states == _FREE]}"
        # A page listed twice keeps only one of the two numbers written to it.
        numbers = np.arange(len(pages), dtype=np.int32)
        self._page_state[pages] = numbers
        assert (self._page_state[pages] == numbers).all(), f"page freed twice in one call: {pages}"
        self._page_state[pages] = _FREE
