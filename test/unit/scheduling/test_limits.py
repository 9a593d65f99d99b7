"""Limits that the scheduler keeps: queue sizes, deadlines, quotas, waits, priorities, shedding."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
from support.fake_executor import continuation
from support.scheduler_rig import SchedulerRig

from runtime.srt.messages import AbortRequest, SchedulerState, StateQuery
from runtime.srt.scheduling.request import Request


def aborted(rig: SchedulerRig, rid: str) -> tuple[int | None, str]:
    finish = rig.outcomes[rid].finish
    assert finish is not None and finish.type == "abort", finish
    return finish.status_code, finish.message or ""


def test_a_request_ends_with_an_error_at_its_deadline_running_or_waiting() -> None:
    rig = SchedulerRig(max_running_requests=1)
    rig.submit("running", [1, 2, 3], max_new_tokens=50, timeout_seconds=0.105)
    rig.submit("waiting", [4, 5, 6], max_new_tokens=5, timeout_seconds=0.05)
    rig.submit("patient", [7, 8, 9], max_new_tokens=5)
    rig.run()

    assert aborted(rig, "running")[0] == 504
    assert len(rig.outcomes["running"].token_ids) in (10, 11)
    status, message = aborted(rig, "waiting")
    assert status == 504 and "0 tokens" in message and "0.05" in message
    assert rig.outcomes["patient"].token_ids == continuation([7, 8, 9], 5, 50)


def test_a_request_that_ends_in_time_never_hears_of_its_deadline() -> None:
    rig = SchedulerRig()
    rig.submit("r", [1, 2, 3], max_new_tokens=5, timeout_seconds=1.0)
    rig.submit("other", [1, 2, 4], max_new_tokens=100)
    rig.now += 0.0
    rig.run()

    assert rig.outcomes["r"].token_ids == continuation([1, 2, 3], 5, 50)


def test_the_queue_takes_so_many_prompt_tokens_and_says_so_beyond() -> None:
    rig = SchedulerRig(max_running_requests=1, max_queued_tokens=50)
    rig.submit("running", [1] * 5, max_new_tokens=20)
    rig.step()
    rig.submit("long", [2] * 60)  # alone in the queue: it may be longer than the limit
    rig.submit("refused", [3] * 5)
    rig.run()

    status, message = aborted(rig, "refused")
    assert status == 503 and "60" in message and "50" in message
    assert rig.outcomes["long"].finish is not None
    assert rig.outcomes["long"].finish.type == "length"


def test_a_tenant_beyond_its_quota_waits_while_others_go_on() -> None:
    rig = SchedulerRig(total_tokens=2000, quotas={"small": 59.0})  # about one token a second
    for number in range(4):
        rig.submit(f"small{number}", [number, 1, 2] * 10, max_new_tokens=30, tenant="small")
    rig.submit("free", [9, 9, 9], max_new_tokens=20, tenant="unlimited")
    for _ in range(200):
        rig.step()

    ended = [rid for rid, one in rig.outcomes.items() if one.finish is not None]
    assert ended == ["small0", "small1", "free"], "the prompts of two fit into the first minute"

    rig.now += 120.0
    for _ in range(200):
        rig.step()
    assert rig.outcomes["small2"].finish is not None
    assert rig.outcomes["small2"].token_ids == continuation([2, 1, 2] * 10, 30, 50)


def test_ended_requests_are_not_kept_until_their_deadline() -> None:
    rig = SchedulerRig(total_tokens=2000, quotas={"slow": 1.0})
    rig.submit("debt", [7] * 90, tenant="slow")
    for number in range(300):
        rig.submit(f"r{number}", [number % 50, 1], max_new_tokens=1, timeout_seconds=1e6)
        rig.submit(f"d{number}", [2, 3], tenant="slow")
        rig.step()
        rig.scheduler.receive(AbortRequest(f"d{number}"))
    rig.step()
    gc.collect()

    kept = [one for one in gc.get_objects() if type(one) is Request]
    assert len([one for one in kept if one.rid in rig.outcomes]) < 120


def test_a_running_request_that_was_retracted_does_not_wait_for_its_quota() -> None:
    rig = SchedulerRig(max_running_requests=1, quotas={"t": 10.0})
    rig.submit("low", [1] * 20, max_new_tokens=10, tenant="t")
    for _ in range(3):
        rig.step()
    rig.submit("high", [6, 7], max_new_tokens=3, priority=11)
    for _ in range(40):
        rig.step()

    assert rig.outcomes["low"].num_retractions == 1
    assert rig.outcomes["low"].finish is not None


@pytest.mark.parametrize("limit", [0, 2])
def test_who_can_start_at_once_is_not_refused_for_the_queues_limit(limit: int) -> None:
    rig = SchedulerRig(max_running_requests=4, max_queued_requests=limit)
    for number in range(4 + limit + 1):
        rig.submit(f"r{number}", [number, 1], max_new_tokens=2)
    rig.run()

    refused = [rid for rid, one in rig.outcomes.items() if one.finish and one.finish.status_code]
    assert refused == [f"r{4 + limit}"]


def test_the_queues_limit_holds_also_where_memory_is_what_they_wait_for() -> None:
    rig = SchedulerRig(total_tokens=100, max_running_requests=8, max_queued_requests=2)
    rig.submit("running", [1] * 40, max_new_tokens=50, ignore_eos=True)
    for number in range(6):
        rig.submit(f"r{number}", [number] * 40, max_new_tokens=50, ignore_eos=True)
        rig.step()
    rig.run()

    refused = [rid for rid, one in rig.outcomes.items() if one.finish and one.finish.status_code]
    assert refused == ["r3", "r4", "r5"], "two wait, and one came before a plan had looked"


def test_a_cached_prefix_costs_no_quota() -> None:
    rig = SchedulerRig(total_tokens=2000, quotas={"t": 100.0})
    prompt = [5] * 40
    for number in range(8):
        rig.submit(f"r{number}", [*prompt, number], max_new_tokens=1, tenant="t")
        rig.run()

    assert all(one.finish.type == "length" for one in rig.outcomes.values() if one.finish)


def test_one_far_more_important_takes_the_place_of_another_which_then_goes_on() -> None:
    rig = SchedulerRig(max_running_requests=1)
    rig.submit("low", [1, 2, 3], max_new_tokens=20)
    for _ in range(3):
        rig.step()
    rig.submit("slightly", [4, 5], max_new_tokens=3, priority=10)
    rig.submit("high", [6, 7], max_new_tokens=3, priority=11)
    rig.run()

    order = sorted(rig.outcomes, key=lambda rid: rig.outcomes[rid].finished_at_step)
    assert order[0] == "high"
    assert rig.outcomes["low"].num_retractions == 1
    assert rig.outcomes["low"].token_ids == continuation([1, 2, 3], 20, 50)


def test_a_cold_request_is_admitted_within_the_bound_under_a_stream_of_hot_ones() -> None:
    rig = SchedulerRig(
        total_tokens=600, max_running_requests=2, max_wait_seconds=0.5, ageing_stride=10**9
    )
    hot = [1, 2, 3, 4] * 5
    rig.submit("first", hot, max_new_tokens=2)
    rig.run()
    rig.submit("cold", [9] * 12, max_new_tokens=1)
    arrived = rig.now
    number = 0
    while rig.outcomes["cold"].finish is None:
        for _ in range(2):
            rig.submit(f"hot{number}", [*hot, number % 50], max_new_tokens=2)
            number += 1
        rig.step()
        assert rig.now - arrived < 0.5 + 0.1, "bound, one running request and a step"
    assert rig.now - arrived > 0.4, "the hot ones did go first until then"


def test_one_who_would_wait_too_long_for_a_first_token_is_refused_at_once() -> None:
    rig = SchedulerRig(
        total_tokens=4000,
        context_length=2000,
        max_running_requests=1,
        chunk_tokens=100,
        shed_ttft_seconds=0.5,
    )
    rig.seconds_per_token = 0.001
    rig.submit("a", list(range(50)) * 20, max_new_tokens=50)
    rig.run()
    rig.submit("b", [7, *range(49)] * 20, max_new_tokens=50)
    rig.step()
    rig.submit("c", [8, *range(49)] * 8, max_new_tokens=1)
    rig.submit("d", [9, *range(49)] * 8, max_new_tokens=1)
    rig.run()

    assert rig.outcomes["c"].finish is not None and rig.outcomes["c"].finish.type == "length"
    status, message = aborted(rig, "d")
    assert status == 503 and "0.5 s" in message


def test_decoding_waits_for_no_more_prompt_work_than_a_slice() -> None:
    rig = SchedulerRig(
        total_tokens=4000, context_length=2000, chunk_tokens=400, max_prefill_slice_ms=50.0
    )
    rig.seconds_per_token = 0.001
    rig.submit("teach", list(range(50)) * 8, max_new_tokens=1)
    rig.run()
    rig.submit("chat", [1, 2, 3], max_new_tokens=40)
    rig.step()
    rig.submit("long", [5, *range(49)] * 20, max_new_tokens=1)
    start = len(rig.executor.step_tokens)
    for _ in range(10):
        rig.step()

    assert max(rig.executor.step_tokens[start:]) <= 51
    assert len(rig.outcomes["chat"].token_ids) >= 11


def test_preemptions_are_counted_among_the_retractions() -> None:
    rig = SchedulerRig(max_running_requests=1)
    rig.submit("low", [1, 2, 3], max_new_tokens=20)
    rig.step()
    rig.submit("high", [6, 7], max_new_tokens=3, priority=11)
    rig.run()
    rig.scheduler.receive(StateQuery(1))

    (state,) = rig.scheduler.take_replies()
    assert isinstance(state, SchedulerState)
    assert (state.counters.preemptions, state.counters.retractions) == (1, 1)


@pytest.mark.parametrize("leader_ends", ["aborted", "finishes"])
def test_nobody_waits_for_the_prompt_of_one_that_was_preempted_in_the_same_step(
    leader_ends: str,
) -> None:
    shared = list(range(8))
    rig = SchedulerRig(max_running_requests=1, max_wait_seconds=0.01, in_batch_sharing_min_tokens=1)
    rig.submit("leader", shared)
    rig.submit("urgent", [6, 7], priority=11)
    rig.submit("follower", [*shared, 1])
    rig.now += 1.0  # all have waited for too long: they are admitted in the order of arrival
    rig.step()
    assert rig.outcomes["leader"].finish is None
    if leader_ends == "aborted":
        rig.scheduler.receive(AbortRequest("leader"))

    rig.run()

    for rid in ("leader", "urgent", "follower"):
        finish = rig.outcomes[rid].finish
        assert finish is not None, rid
        assert finish.type == ("abort" if (rid, leader_ends) == ("leader", "aborted") else "length")


@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize("mixed", [True, False])
def test_a_prompt_in_progress_advances_under_a_stream_of_short_ones(
    page_size: int, mixed: bool
) -> None:
    rig = SchedulerRig(
        total_tokens=800,
        page_size=page_size,
        chunk_tokens=page_size,  # the smallest budget there is
        mix_decode_into_prefill=mixed,
        ageing_stride=10**9,
    )
    rig.submit("long", [9] * 40, max_new_tokens=1)
    rig.step()
    for number in range(200):
        rig.submit(f"short{number}", [number % 50], max_new_tokens=1)
        rig.step()
        if rig.outcomes["long"].finish is not None:
            break

    assert rig.outcomes["long"].finish is not None
    assert rig.outcomes["short0"].finish is not None, "short ones still pass it"
    rig.run()


@pytest.mark.parametrize("eviction_policy", ["lru", "lfu", "slru"])
def test_forced_retraction_leaves_progress_also_token_by_token(eviction_policy: str) -> None:
    rig = SchedulerRig(
        total_tokens=700,
        context_length=200,
        chunk_tokens=1,
        max_running_requests=16,
        eviction_policy=eviction_policy,
        test_retract_every=3,
    )
    for number in range(24):
        rig.submit(f"r{number}", [number] * 60, max_new_tokens=30, ignore_eos=True)
    rig.run(max_steps=4000)

    for number in range(24):
        assert rig.outcomes[f"r{number}"].token_ids == continuation([number] * 60, 30, 50)


@pytest.mark.parametrize(
    ("options", "cached"),
    [
        ({}, 0),  # shares 24 tokens: fewer than the 32 that are worth waiting for
        ({"in_batch_sharing_min_tokens": 24}, 24),
        ({"in_batch_sharing_min_tokens": 25}, 0),
    ],
)
def test_a_follower_waits_for_as_many_tokens_as_the_option_says(
    options: dict[str, int], cached: int
) -> None:
    rig = SchedulerRig(total_tokens=1000, chunk_tokens=64, **options)
    shared = list(range(24))
    rig.submit("leader", [*shared, 30], max_new_tokens=2)
    rig.submit("follower", [*shared, 31], max_new_tokens=2)
    rig.run()

    assert rig.outcomes["follower"].cached_tokens == cached


@pytest.mark.parametrize(
    ("options", "cached"),
    [
        ({}, 48),
        ({"in_batch_sharing_min_tokens": 0}, 8),
        ({"in_batch_sharing_max_cached_tokens": 8}, 48),
        ({"in_batch_sharing_max_cached_tokens": 7}, 8),
    ],
)
def test_who_has_enough_cached_does_not_wait_for_a_leader(
    options: dict[str, int], cached: int
) -> None:
    rig = SchedulerRig(total_tokens=1000, chunk_tokens=128, **options)
    shared = list(range(48))
    rig.submit("warm", shared[:8], max_new_tokens=0)
    rig.run()
    rig.submit("leader", [*shared, *[48] * 9], max_new_tokens=2)
    rig.submit("follower", [*shared, *[49] * 9], max_new_tokens=2)
    rig.run()

    assert rig.outcomes["follower"].cached_tokens == cached


def test_no_follower_waits_for_a_token_that_its_leader_has_not_drawn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def used_memory(length: int, dtype: Any) -> np.ndarray:
        return np.full(length, 7, dtype)

    monkeypatch.setattr("runtime.srt.scheduling.request.np.empty", used_memory)
    rig = SchedulerRig(overlap_depth=1, chunk_tokens=64, max_running_requests=1)
    rig.submit("leader", [1] * 40, max_new_tokens=5)
    rig.step()  # its first token is being drawn
    rig.submit("follower", [*[1] * 40, 7, 8, 8], max_new_tokens=5, priority=20)
    rig.submit("other", [2] * 40, max_new_tokens=5, priority=20)
    rig.run()  # the other one takes the leader's place at once

    assert rig.outcomes["leader"].num_retractions == 1
    assert rig.outcomes["follower"].token_ids == continuation([*[1] * 40, 7, 8, 8], 5, 50)
