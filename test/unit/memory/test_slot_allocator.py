"""SlotAllocator: whole pages, the dummy page, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest

from runtime.srt.memory.slot_allocator import SlotAllocator


def test_dummy_page_is_never_handed_out() -> None:
    allocator = SlotAllocator(12, page_size=4)

    slots = allocator.allocate(3)

    assert slots is not None and slots.tolist() == list(range(4, 16))
    assert slots.dtype == np.int32


def test_too_large_a_request_changes_nothing() -> None:
    allocator = SlotAllocator(4, page_size=2)

    assert allocator.allocate(3) is None
    assert allocator.available_tokens == 4


def test_last_freed_slots_are_reused_first() -> None:
    allocator = SlotAllocator(1_000, page_size=1)
    first = allocator.allocate(3)
    assert first is not None
    allocator.free(first)

    again = allocator.allocate(3)

    assert again is not None and again.tolist() == first.tolist()


def test_returned_slots_are_the_callers_to_change() -> None:
    allocator = SlotAllocator(4, page_size=1)
    slots = allocator.allocate(4)
    assert slots is not None
    allocator.free(slots)

    slots[:] = 99

    allocator.check_invariants()


@pytest.mark.parametrize("page_size", [1, 2])
def test_double_free_is_refused(page_size: int) -> None:
    allocator = SlotAllocator(8, page_size)
    slots = allocator.allocate(2)
    assert slots is not None
    allocator.free(slots)

    with pytest.raises(AssertionError, match="double free"):
        allocator.free(slots)


def test_page_listed_twice_in_one_free_is_refused() -> None:
    allocator = SlotAllocator(8, page_size=1)
    slots = allocator.allocate(2)
    assert slots is not None

    with pytest.raises(AssertionError, match="twice"):
        allocator.free(np.array([slots[0], slots[0]], dtype=np.int32))


@pytest.mark.parametrize("slots", [[0], [9], [-1]])
def test_foreign_slot_is_refused(slots: list[int]) -> None:
    allocator = SlotAllocator(8, page_size=1)
    allocator.allocate(8)

    with pytest.raises(AssertionError, match="foreign"):
        allocator.free(np.array(slots, dtype=np.int32))


@pytest.mark.parametrize("slots", [[4], [5, 6], [4, 6]])
def test_part_of_a_page_is_refused(slots: list[int]) -> None:
    allocator = SlotAllocator(8, page_size=2)
    allocator.allocate(4)

    with pytest.raises(AssertionError, match="whole"):
        allocator.free(np.array(slots, dtype=np.int32))
