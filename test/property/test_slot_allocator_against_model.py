"""The slot allocator beside a set of free pages."""

from __future__ import annotations

import random

import numpy as np
import pytest
from numpy.typing import NDArray

from runtime.srt.memory.slot_allocator import SlotAllocator

NUM_OPERATIONS = 7_000
NUM_PAGES = 24


@pytest.mark.parametrize("page_size", [1, 2, 4])
def test_allocator_equals_a_set_of_free_pages(page_size: int) -> None:
    chooser = random.Random(page_size)
    allocator = SlotAllocator(NUM_PAGES * page_size, page_size)
    free_pages = set(range(1, NUM_PAGES + 1))
    given: list[NDArray[np.int32]] = []

    for _ in range(NUM_OPERATIONS):
        if given and chooser.random() < 0.5:
            slots = given.pop(chooser.randrange(len(given)))
            cut = chooser.randrange(len(slots) // page_size + 1) * page_size
            if cut:
                given.append(slots[:cut])
            allocator.free(slots[cut:])
            free_pages |= _pages(slots[cut:], page_size)
        else:
            wanted = chooser.randrange(8)
            taken = allocator.allocate(wanted)
            assert (taken is None) == (wanted > len(free_pages))
            if taken is not None and wanted:
                assert len(taken) == wanted * page_size
                assert _pages(taken, page_size) <= free_pages
                free_pages -= _pages(taken, page_size)
                given.append(taken)
        allocator.check_invariants()
        assert allocator.available_tokens == len(free_pages) * page_size
        assert _pages(allocator.free_slots(), page_size) == free_pages


def _pages(slots: NDArray[np.int32], page_size: int) -> set[int]:
    """The pages of slots, each of which must be there from its first to its last slot."""
    pages = {int(slot) // page_size for slot in slots[::page_size]}
    expected = [page * page_size + at for page in sorted(pages) for at in range(page_size)]
    assert sorted(slots.tolist()) == expected
    return pages
