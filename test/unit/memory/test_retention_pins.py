"""Retention pins: what stays, for how long, and how much of it there may be."""

from __future__ import annotations

import pytest

from runtime.srt.errors import BadRequest
from runtime.srt.memory.kv_memory import KvMemory
from runtime.srt.memory.memory_checks import check_memory
from runtime.srt.messages import KvStats


def make_memory(pinned_share: float = 0.25) -> KvMemory:
    return KvMemory(16, 1, num_rows=4, max_context=64, pinned_share=pinned_share)


def run(memory: KvMemory, tokens: list[int]) -> None:
    lease = memory.open(tokens, None, len(tokens) - 1)
    assert lease is not None and memory.grow(lease, len(tokens))
    memory.close(lease, tokens, len(tokens))


def test_pinned_prefix_outlives_a_flood_and_goes_after_its_time() -> None:
    memory = make_memory()
    run(memory, [1, 2, 3, 4])
    memory.pin([1, 2, 3, 4], None, expiry_seconds=10.0)

    run(memory, [9] * 12)
    memory.release_expired_pins(9.9)
    run(memory, [8] * 12)
    assert memory.peek_prefix_length([1, 2, 3, 4], None) == 4
    assert memory.stats() == KvStats(
        total=16, available=0, evictable=12, protected=4, held=0, pinned=4
    )
    memory.release_expired_pins(10.0)
    run(memory, [7] * 16)

    assert memory.pinned_tokens == memory.protected_tokens == 0
    assert memory.peek_prefix_length([1, 2, 3, 4], None) == 0
    check_memory(memory)


def test_pin_covers_what_is_cached_when_it_is_made() -> None:
    memory = make_memory()
    run(memory, [1, 2])

    pin = memory.pin([1, 2, 3, 4], None, 10.0)
    run(memory, [1, 2, 3, 4])

    assert pin.num_tokens == memory.pinned_tokens == 2


def test_pins_beyond_the_share_are_refused_with_both_numbers() -> None:
    memory = make_memory()
    run(memory, [1, 2, 3])
    run(memory, [7, 8])
    memory.pin([1, 2, 3], None, 10.0)
    before = memory.stats()

    with pytest.raises(BadRequest, match="pinning 2 more tokens .*: 3 of at most 4 tokens"):
        memory.pin([7, 8], None, 10.0)

    assert memory.stats() == before


def test_overlapping_pins_count_a_token_once_and_hold_it_until_the_last_ends() -> None:
    memory = make_memory()
    run(memory, [1, 2, 3, 4])
    memory.pin([1, 2, 3], None, 10.0)
    longer = memory.pin([1, 2, 3, 4], None, 20.0)
    assert memory.pinned_tokens == 4

    memory.release_expired_pins(15.0)
    assert memory.pinned_tokens == 4
    memory.unpin(longer)
    memory.unpin(longer)

    assert memory.pinned_tokens == 0
    memory.release_expired_pins(30.0)
    check_memory(memory)


def test_flush_takes_pins_too() -> None:
    memory = make_memory()
    run(memory, [1, 2, 3])
    memory.pin([1, 2, 3], None, 10.0)

    assert memory.flush()

    assert memory.stats() == KvStats(total=16, available=16, evictable=0, protected=0, held=0)
    memory.release_expired_pins(10.0)


def test_share_of_nothing_refuses_every_pin_but_an_empty_one() -> None:
    memory = make_memory(pinned_share=0.0)
    run(memory, [1])

    assert memory.pin([5], None, 10.0).num_tokens == 0
    with pytest.raises(BadRequest, match="0 of at most 0 tokens"):
        memory.pin([1], None, 10.0)


def test_room_for_a_prefix_is_known_before_it_is_computed() -> None:
    memory = make_memory()
    run(memory, [1, 2])
    memory.pin([1, 2], None, 10.0)

    memory.check_pin([1, 2, 3, 4], None)
    with pytest.raises(BadRequest, match="pinning 3 more tokens .*: 2 of at most 4 tokens"):
        memory.check_pin([1, 2, 3, 4, 5], None)
    with pytest.raises(BadRequest, match="pinning 4 more tokens"):
        memory.check_pin([1, 2, 3, 4], "another namespace")


def test_pins_that_were_ended_early_do_not_pile_up_until_their_time() -> None:
    memory = make_memory()
    run(memory, [1, 2])

    for _ in range(1000):
        memory.unpin(memory.pin([1, 2], None, 1e6))

    assert memory.pins.num_pins == 0
    assert memory.pins.num_remembered < 100
