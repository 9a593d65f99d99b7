"""Eviction policies as a user of KvMemory meets them."""

from __future__ import annotations

import dataclasses

import pytest

from runtime.srt.memory.eviction_order import EVICTION_POLICIES
from runtime.srt.memory.kv_memory import KvMemory
from runtime.srt.server_args import ServerArgs

TEXTS = {1: [1] * 4, 2: [2] * 4, 3: [3] * 4}


def make_memory(policy: str) -> KvMemory:
    return KvMemory(40, 1, num_rows=4, max_context=64, eviction_policy=policy)


def run(memory: KvMemory, tokens: list[int], priority: int = 0) -> None:
    """One request: tokens, and one more that must be computed in any case."""
    prompt = [*tokens, 99]
    lease = memory.open(prompt, None, len(tokens), priority)
    assert lease is not None and memory.grow(lease, len(prompt))
    memory.close(lease, prompt, len(prompt))


def first_to_go(memory: KvMemory) -> int:
    """Which of TEXTS loses a token first when the pool runs full."""
    lease = memory.open([0], None, 0)
    assert lease is not None
    for num_tokens in range(1, 41):
        assert memory.grow(lease, num_tokens)
        for number, text in TEXTS.items():
            if memory.peek_prefix_length(text, None) < len(text):
                return number
    raise AssertionError("nothing went")


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("lru", 2),  # all were used again, 2 before the others
        ("lfu", 3),  # one hit, the others have two
        ("slru", 2),  # all were hit: least recently used
        ("fifo", 1),
        ("priority", 3),
    ],
)
def test_policy_decides_who_goes_first(policy: str, expected: int) -> None:
    memory = make_memory(policy)
    for number, text in TEXTS.items():
        run(memory, text, priority=-number)
    for number in [1, 2, 2, 3, 1]:
        run(memory, TEXTS[number], priority=-number)

    assert first_to_go(memory) == expected


def test_slru_gives_up_first_what_was_never_hit() -> None:
    memory = make_memory("slru")
    for number in [1, 1, 3, 2, 2]:
        run(memory, TEXTS[number])

    assert first_to_go(memory) == 3


def test_looking_again_for_room_is_no_hit() -> None:
    memory = make_memory("lfu")
    for number in [1, 2, 3, 2, 3]:
        run(memory, TEXTS[number])
    for _ in range(5):  # an admission that finds no room opens and closes
        lease = memory.open(TEXTS[1], None, 4)
        assert lease is not None
        memory.close(lease, TEXTS[1], lease.num_matched)

    assert first_to_go(memory) == 1


def test_hits_of_longer_prompts_count_for_the_prefix_after_they_are_gone() -> None:
    memory = make_memory("lfu")
    run(memory, TEXTS[1])
    for _ in range(2):
        run(memory, [*TEXTS[1], 7])  # evicted before any of the texts: nobody hit this far
    for number in [2, 3, 2, 3]:
        run(memory, TEXTS[number])

    assert first_to_go(memory) == 2


def test_unknown_policy_is_refused_by_name() -> None:
    with pytest.raises(AssertionError, match="'mru'"):
        make_memory("mru")


def test_flag_offers_every_policy() -> None:
    fields = {one.name: one for one in dataclasses.fields(ServerArgs)}

    assert fields["radix_eviction_policy"].metadata["choices"] == EVICTION_POLICIES
