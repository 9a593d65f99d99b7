"""Pins: a prefix is computed if need be, kept for its time, and never at the cost of accounting."""

from __future__ import annotations

import pytest
from support.fake_executor import continuation
from support.scheduler_rig import SchedulerRig

from runtime.srt.messages import (
    AbortRequest,
    FlushCache,
    SchedulerState,
    StateQuery,
    UnpinDone,
    UnpinPrefix,
)

PREFIX = list(range(24))


def pin(rig: SchedulerRig, rid: str, prompt: list[int], seconds: float = 1000.0) -> None:
    rig.submit(rid, prompt, max_new_tokens=0, pin_seconds=seconds)
    rig.run()


def refusal(rig: SchedulerRig, rid: str) -> tuple[int | None, str]:
    finish = rig.outcomes[rid].finish
    assert finish is not None and finish.type == "abort", finish
    return finish.status_code, finish.message or ""


def flood(rig: SchedulerRig, name: str) -> None:
    """Requests that take the whole pool one after another."""
    for number in range(8):
        rig.submit(f"{name}{number}", [40 + number] * 40, max_new_tokens=20, ignore_eos=True)
    rig.run()


def unpin(rig: SchedulerRig, pin_id: str) -> int | None:
    rig.scheduler.receive(UnpinPrefix(1, pin_id))
    (done,) = rig.scheduler.take_replies()
    assert isinstance(done, UnpinDone)
    return done.num_tokens


def state(rig: SchedulerRig) -> SchedulerState:
    rig.scheduler.receive(StateQuery(2))
    (reply,) = rig.scheduler.take_replies()
    assert isinstance(reply, SchedulerState)
    return reply


@pytest.mark.parametrize("overlap_depth", [0, 1])
@pytest.mark.parametrize("eviction_policy", ["lru", "lfu"])
def test_a_pinned_prefix_outlives_a_flood_until_its_time(
    overlap_depth: int, eviction_policy: str
) -> None:
    rig = SchedulerRig(
        total_tokens=100, overlap_depth=overlap_depth, eviction_policy=eviction_policy
    )
    pin(rig, "p", PREFIX, seconds=1000.0)
    assert rig.outcomes["p"].pin is not None
    assert rig.outcomes["p"].pin.num_tokens == 24
    assert rig.outcomes["p"].pin.expiry_seconds == pytest.approx(1000.0, abs=1.0)

    flood(rig, "a")
    rig.submit("during", [*PREFIX, 30], max_new_tokens=3)
    rig.run()
    rig.now += 1000.0
    flood(rig, "b")
    rig.submit("after", [*PREFIX, 31], max_new_tokens=3)
    rig.run()

    assert rig.outcomes["during"].cached_tokens == 24
    assert rig.outcomes["during"].token_ids == continuation([*PREFIX, 30], 3, 50)
    assert rig.outcomes["after"].cached_tokens == 0
    assert state(rig).num_pins == 0


def test_what_is_pinned_shows_in_the_state_and_ends_with_unpin() -> None:
    rig = SchedulerRig(total_tokens=100)
    pin(rig, "p", PREFIX)
    before = state(rig)
    assert (before.num_pins, before.kv.pinned, before.pin_limit_tokens) == (1, 24, 25)
    assert before.kv.protected == 24

    assert unpin(rig, "p") == 24
    assert unpin(rig, "p") is None
    assert unpin(rig, "another") is None

    assert (state(rig).num_pins, state(rig).kv.pinned, state(rig).kv.protected) == (0, 0, 0)


def test_an_expired_pin_is_not_shown_though_nothing_has_run_since() -> None:
    rig = SchedulerRig(total_tokens=100)
    pin(rig, "p", PREFIX, seconds=5.0)

    rig.now += 5.1

    assert state(rig).num_pins == 0
    assert unpin(rig, "p") is None


def test_a_pin_beyond_the_share_is_refused_before_anything_is_computed() -> None:
    rig = SchedulerRig(total_tokens=100)
    pin(rig, "p", PREFIX)
    steps = len(rig.executor.step_tokens)

    pin(rig, "too much", [7] * 10)

    status, message = refusal(rig, "too much")
    assert status == 400
    assert "10 more tokens" in message and "24 of at most 25" in message
    assert len(rig.executor.step_tokens) == steps
    assert state(rig).num_pins == 1


def test_of_two_that_fit_alone_the_later_one_is_refused_and_holds_nothing() -> None:
    rig = SchedulerRig(total_tokens=100)
    rig.submit("one", [1] * 20, max_new_tokens=0, pin_seconds=100.0)
    rig.submit("two", [2] * 20, max_new_tokens=0, pin_seconds=100.0)
    rig.run()

    outcomes = [rig.outcomes["one"], rig.outcomes["two"]]
    assert sorted(one.pin is not None for one in outcomes) == [False, True]
    assert state(rig).kv.pinned == 20


def test_pinning_again_extends_and_counts_tokens_once() -> None:
    rig = SchedulerRig(total_tokens=100)
    pin(rig, "first", PREFIX, seconds=10.0)
    pin(rig, "again", PREFIX, seconds=1000.0)
    assert rig.outcomes["again"].cached_tokens == 23
    assert (state(rig).num_pins, state(rig).kv.pinned) == (2, 24)

    rig.now += 20.0

    assert (state(rig).num_pins, state(rig).kv.pinned) == (1, 24)


def test_whole_pages_are_pinned_and_less_than_one_is_refused() -> None:
    rig = SchedulerRig(total_tokens=128, page_size=8)
    pin(rig, "p", PREFIX[:21])
    pin(rig, "short", [1, 2, 3])

    assert rig.outcomes["p"].pin is not None
    assert rig.outcomes["p"].pin.num_tokens == 16
    status, message = refusal(rig, "short")
    assert status == 400 and "3 tokens" in message and "pages of 8" in message


def test_without_a_cache_nothing_can_be_pinned() -> None:
    rig = SchedulerRig(enable_cache=False)
    pin(rig, "p", PREFIX)

    assert refusal(rig, "p")[0] == 400
    assert "--disable-radix-cache" in refusal(rig, "p")[1]


def test_a_request_that_does_not_fit_beside_the_pins_says_so_and_fits_later() -> None:
    rig = SchedulerRig(total_tokens=100, context_length=100)
    pin(rig, "p", PREFIX)

    rig.submit("long", [9] * 60, max_new_tokens=30, ignore_eos=True)
    rig.run()
    status, message = refusal(rig, "long")
    assert status == 503 and "24 of them pinned" in message and "unpin" in message
    unpin(rig, "p")
    rig.submit("retry", [9] * 60, max_new_tokens=30, ignore_eos=True)
    rig.run()

    assert rig.outcomes["retry"].token_ids == continuation([9] * 60, 30, 50)


def test_a_flush_ends_pins() -> None:
    rig = SchedulerRig(total_tokens=100)
    pin(rig, "p", PREFIX)

    rig.scheduler.receive(FlushCache(3, 1.0))
    rig.step()
    rig.scheduler.take_replies()

    assert (state(rig).num_pins, state(rig).kv.available) == (0, 100)
    assert unpin(rig, "p") is None


def test_an_aborted_pin_request_pins_nothing() -> None:
    rig = SchedulerRig(total_tokens=100, chunk_tokens=8)
    rig.submit("p", PREFIX, max_new_tokens=0, pin_seconds=100.0)
    rig.step()
    rig.scheduler.receive(AbortRequest("p"))
    rig.run()

    assert state(rig).num_pins == 0
    assert unpin(rig, "p") is None
