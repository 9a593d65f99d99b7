"""What a request sees of the scheduler: the right tokens, one finish, and its turn."""

from __future__ import annotations

import pytest
from support.fake_executor import continuation, score
from support.scheduler_rig import SchedulerRig

from runtime.srt.messages import AbortRequest, FlushCache, StateQuery
from runtime.srt.sampling_params import LogprobOptions


def test_one_request_gets_the_tokens_of_the_model() -> None:
    rig = SchedulerRig()
    prompt = list(range(40))

    rig.submit("a", prompt, max_new_tokens=10)
    rig.run()

    outcome = rig.outcomes["a"]
    assert outcome.token_ids == continuation(prompt, 10, 50)
    assert outcome.finish is not None and outcome.finish.type == "length"


def test_the_second_turn_finds_prompt_and_output_of_the_first_in_the_cache() -> None:
    rig = SchedulerRig()
    prompt = list(range(20))
    rig.submit("turn-1", prompt, max_new_tokens=10)
    rig.run()
    history = prompt + rig.outcomes["turn-1"].token_ids

    rig.submit("turn-2", [*history, 7, 8, 9], max_new_tokens=5)
    rig.run()

    # The last drawn token was never computed: it is all that is missing.
    assert rig.outcomes["turn-2"].cached_tokens == len(history) - 1
    assert rig.outcomes["turn-2"].token_ids == continuation([*history, 7, 8, 9], 5, 50)


@pytest.mark.parametrize("cached", [0, 1, 7, 20, 38, 39])
def test_the_answer_does_not_depend_on_how_much_was_cached(cached: int) -> None:
    rig = SchedulerRig()
    prompt = list(range(40))
    if cached:
        rig.submit("warm", prompt[:cached], max_new_tokens=0)
        rig.run()

    rig.submit("a", prompt, max_new_tokens=8)
    rig.run()

    assert rig.outcomes["a"].cached_tokens == cached
    assert rig.outcomes["a"].token_ids == continuation(prompt, 8, 50)


def test_identical_prompts_at_once_share_one_prefill() -> None:
    rig = SchedulerRig(total_tokens=1024, max_running_requests=16, chunk_tokens=64)
    prompt = list(range(48))

    for i in range(16):
        rig.submit(f"r{i}", prompt, max_new_tokens=4)
    rig.run()

    cached = [rig.outcomes[f"r{i}"].cached_tokens for i in range(16)]
    assert sorted(cached) == [0] + [47] * 15
    assert all(o.token_ids == continuation(prompt, 4, 50) for o in rig.outcomes.values())


def test_namespaces_do_not_share_a_prefix() -> None:
    rig = SchedulerRig()
    prompt = list(range(30))

    rig.submit("a", prompt, namespace="tenant-1")
    rig.run()
    rig.submit("b", prompt, namespace="tenant-2")
    rig.submit("c", prompt, namespace="tenant-1")
    rig.run()

    assert rig.outcomes["b"].cached_tokens == 0
    assert rig.outcomes["c"].cached_tokens == 29


def test_a_short_prompt_passes_a_long_one() -> None:
    rig = SchedulerRig(total_tokens=4096, context_length=2048, chunk_tokens=32)

    rig.submit("long", [i % 50 for i in range(1500)], max_new_tokens=1)
    rig.step()
    rig.submit("short", [1, 2, 3], max_new_tokens=1)
    rig.run()

    assert rig.outcomes["short"].finished_at_step <= 3
    assert rig.outcomes["long"].finished_at_step > 40


def test_no_step_computes_more_than_the_chunk() -> None:
    rig = SchedulerRig(total_tokens=4096, context_length=1024, chunk_tokens=32)

    for i in range(8):
        rig.submit(f"r{i}", [(i * 7 + j) % 50 for j in range(200)], max_new_tokens=20)
    rig.run()

    assert max(rig.executor.step_tokens) <= 32


def test_decoding_goes_on_while_a_long_prompt_is_computed() -> None:
    rig = SchedulerRig(total_tokens=4096, context_length=2048, chunk_tokens=32)
    rig.submit("chat", [1, 2, 3], max_new_tokens=20)
    rig.step()

    rig.submit("long", [i % 50 for i in range(1500)], max_new_tokens=1)
    rig.run()

    assert rig.outcomes["chat"].finished_at_step <= 25


def test_without_mixing_prompts_and_decoding_take_turns() -> None:
    rig = SchedulerRig(mix_decode_into_prefill=False, total_tokens=512)
    rig.submit("chat", [1, 2, 3], max_new_tokens=6)
    rig.step()

    rig.submit("other", list(range(30)), max_new_tokens=2)
    rig.run()

    assert rig.executor.step_tokens[:4] == [3, 16, 1, 14]
    assert rig.outcomes["chat"].token_ids == continuation([1, 2, 3], 6, 50)


def test_a_pool_too_small_for_all_retracts_and_every_answer_stays_right() -> None:
    rig = SchedulerRig(total_tokens=100, conservativeness=0.01, chunk_tokens=64)
    prompts = {f"r{i}": [i, i + 1, i + 2, i + 3] for i in range(6)}

    for rid, prompt in prompts.items():
        rig.submit(rid, prompt, max_new_tokens=60)
    rig.run()

    assert sum(o.num_retractions for o in rig.outcomes.values()) > 0
    for rid, prompt in prompts.items():
        assert rig.outcomes[rid].token_ids == continuation(prompt, 60, 50), rid


def test_abort_ends_a_request_in_every_phase() -> None:
    rig = SchedulerRig(max_running_requests=1, total_tokens=512)
    rig.submit("decoding", [1, 2], max_new_tokens=50)
    rig.step()
    rig.submit("waiting", [3, 4], max_new_tokens=5)

    rig.scheduler.receive(AbortRequest("waiting"))
    rig.step()
    rig.scheduler.receive(AbortRequest("decoding"))
    rig.submit("prefilling", list(range(100)), max_new_tokens=5)
    rig.step()
    rig.scheduler.receive(AbortRequest("prefilling"))
    rig.scheduler.receive(AbortRequest("never-seen"))
    rig.run()

    for rid in ("waiting", "decoding", "prefilling"):
        finish = rig.outcomes[rid].finish
        assert finish is not None and finish.type == "abort" and finish.status_code is None, rid
    assert rig.outcomes["decoding"].token_ids == continuation([1, 2], 2, 50)


def test_an_aborted_prompt_stays_in_the_cache() -> None:
    rig = SchedulerRig(total_tokens=512)
    prompt = list(range(100))
    rig.submit("a", prompt, max_new_tokens=5)
    rig.step()
    rig.step()
    rig.scheduler.receive(AbortRequest("a"))

    rig.submit("b", prompt, max_new_tokens=5)
    rig.run()

    assert rig.outcomes["b"].cached_tokens == 32  # two chunks of 16


def test_abort_all_ends_everything() -> None:
    rig = SchedulerRig()
    for i in range(12):
        rig.submit(f"r{i}", [i, i + 1], max_new_tokens=50)
    rig.step()

    rig.scheduler.receive(AbortRequest(None))
    rig.run()

    assert all(o.finish is not None and o.finish.type == "abort" for o in rig.outcomes.values())


def test_a_full_queue_refuses_with_503() -> None:
    rig = SchedulerRig(max_running_requests=1, max_queued_requests=2)

    for i in range(4):
        rig.submit(f"r{i}", [i], max_new_tokens=3)
    rig.run()

    finish = rig.outcomes["r3"].finish
    assert finish is not None and finish.type == "abort" and finish.status_code == 503
    assert "2" in (finish.message or "")
    assert rig.outcomes["r0"].finish is not None and rig.outcomes["r0"].finish.type == "length"


def test_bad_logits_fail_one_request_only() -> None:
    rig = SchedulerRig()
    rig.executor.fail_on_token = 13

    rig.submit("bad", [1, 13], max_new_tokens=3)
    rig.submit("good", [1, 2], max_new_tokens=3)
    rig.run()

    bad, good = rig.outcomes["bad"].finish, rig.outcomes["good"].finish
    assert bad is not None and bad.type == "abort" and bad.status_code == 500
    assert good is not None and good.type == "length"


def test_eos_stops_and_ignore_eos_goes_on() -> None:
    prompt = [1, 2, 3]
    eos = continuation(prompt, 5, 50)[2]
    expected = continuation(prompt, 5, 50)
    rig = SchedulerRig(eos_token_ids=frozenset({eos}))

    rig.submit("stops", prompt, max_new_tokens=5)
    rig.submit("goes on", prompt, max_new_tokens=5, ignore_eos=True)
    rig.submit("stop id", prompt, max_new_tokens=5, ignore_eos=True, stop_token_ids=(expected[0],))
    rig.run()

    first = expected.index(eos)
    stops = rig.outcomes["stops"]
    assert stops.token_ids == expected[: first + 1]
    assert stops.finish is not None and stops.finish.matched == eos
    assert rig.outcomes["goes on"].token_ids == expected
    assert rig.outcomes["stop id"].token_ids == expected[:1]


def test_min_new_tokens_holds_stopping_ids_back() -> None:
    prompt = [1, 2, 3]
    eos = continuation(prompt, 1, 50)[0]
    rig = SchedulerRig(eos_token_ids=frozenset({eos}))

    rig.submit("a", prompt, max_new_tokens=9, min_new_tokens=6)
    rig.run()

    assert len(rig.outcomes["a"].token_ids) >= 6
    assert eos not in rig.outcomes["a"].token_ids[:6]


@pytest.mark.parametrize("start", [0, 1, 4, 19, 20])
@pytest.mark.parametrize("warm", [0, 3, 20])
def test_prompt_logprobs_are_right_whatever_is_cached(start: int, warm: int) -> None:
    rig = SchedulerRig(chunk_tokens=8)
    prompt = [(i * 7) % 50 for i in range(20)]
    if warm:
        rig.submit("warm", prompt[:warm], max_new_tokens=1)
        rig.run()

    rig.submit("a", prompt, max_new_tokens=2, logprobs=LogprobOptions(prompt_start=start))
    rig.run()

    outcome = rig.outcomes["a"]
    expected = [None if i == 0 else score(prompt[:i], prompt[i]) for i in range(start, 20)]
    got = outcome.prompt_logprobs or []
    assert [p.token_id for p in got] == prompt[start:]
    assert [p.logprob for p in got] == expected
    assert len(outcome.output_logprobs) == 2


def test_max_new_tokens_0_computes_the_prompt_and_caches_it() -> None:
    rig = SchedulerRig()
    prompt = list(range(30))

    rig.submit("a", prompt, max_new_tokens=0, logprobs=LogprobOptions(prompt_start=0))
    rig.run()
    rig.submit("b", prompt, max_new_tokens=1)
    rig.run()

    assert rig.outcomes["a"].token_ids == []
    assert len(rig.outcomes["a"].prompt_logprobs or []) == 30
    assert rig.outcomes["b"].cached_tokens == 29


def test_a_request_that_does_not_stream_gets_one_delta() -> None:
    rig = SchedulerRig()

    rig.submit("whole", [1, 2], max_new_tokens=10, stream=False)
    rig.submit("by three", [1, 2], max_new_tokens=10, stream_interval=3)
    rig.run()

    assert rig.outcomes["whole"].num_deltas == 1
    assert rig.outcomes["by three"].num_deltas == 4  # 1, 3, 3 and the finish with 3


def test_flush_waits_for_idle_and_reports_a_timeout() -> None:
    rig = SchedulerRig()
    rig.submit("a", list(range(30)), max_new_tokens=20)
    rig.step()

    rig.scheduler.receive(FlushCache(1, timeout_seconds=0.0))
    rig.step()
    rig.scheduler.receive(FlushCache(2, timeout_seconds=60.0))
    rig.run()

    replies = {r.call_id: r for r in rig.scheduler.take_replies()}
    assert not getattr(replies[1], "success", True) and getattr(replies[2], "success", False)
    assert rig.memory.stats().evictable == 0
    assert getattr(replies[1], "message", "").startswith("1 requests are running and 0 waiting")


@pytest.mark.parametrize("stream", [True, False])
def test_the_first_delta_tells_when_the_first_token_came(stream: bool) -> None:
    rig = SchedulerRig()
    rig.submit("a", [1, 2, 3], max_new_tokens=5, stream=stream)
    arrived = rig.now

    rig.run()

    outcome = rig.outcomes["a"]
    assert outcome.first_token_seconds == [arrived] + [None] * (outcome.num_deltas - 1)


def test_state_shows_pool_queue_and_totals() -> None:
    rig = SchedulerRig(max_running_requests=1)
    rig.submit("a", list(range(10)), max_new_tokens=20)
    rig.submit("b", [1], max_new_tokens=2)
    rig.step()

    rig.scheduler.receive(StateQuery(7))

    (state,) = rig.scheduler.take_replies()
    assert state.call_id == 7 and state.num_running == 1 and state.num_waiting == 1
    kv = state.kv
    assert kv.total == kv.available + kv.evictable + kv.protected + kv.held
    assert state.counters.requests == 2


def test_lpm_takes_the_cached_prompt_first_and_fcfs_the_oldest() -> None:
    for policy, first in (("lpm", "cached"), ("fcfs", "cold")):
        rig = SchedulerRig(max_running_requests=1, policy=policy, total_tokens=512)
        rig.submit("warm", list(range(40)), max_new_tokens=1)
        rig.run()
        rig.submit("blocker", [9, 9], max_new_tokens=3)
        rig.step()

        rig.submit("cold", [48] * 40, max_new_tokens=1)
        rig.submit("cached", list(range(40)), max_new_tokens=1)
        rig.run()

        order = sorted(("cold", "cached"), key=lambda rid: rig.outcomes[rid].finished_at_step)
        assert order[0] == first, policy


def test_a_cold_request_is_served_under_a_stream_of_cached_ones() -> None:
    rig = SchedulerRig(max_running_requests=1, total_tokens=1024)
    hot = list(range(40))
    rig.submit("warm", hot, max_new_tokens=1)
    rig.run()
    rig.submit("cold", [48] * 40, max_new_tokens=1)

    for i in range(100):
        rig.submit(f"hot{i}", hot, max_new_tokens=1)
        rig.submit(f"hotter{i}", hot, max_new_tokens=1)
        rig.step()
        if rig.outcomes["cold"].finish is not None:
            break
    served_after = i

    assert served_after < 20
    rig.run()


@pytest.mark.parametrize("overlap_depth", [0, 1])
def test_a_follower_waits_until_all_it_shares_is_cached(overlap_depth: int) -> None:
    rig = SchedulerRig(total_tokens=1000, chunk_tokens=16, overlap_depth=overlap_depth)
    shared = [i % 50 for i in range(48)]

    rig.submit("leader", [*shared, *[7] * 40], max_new_tokens=2)
    rig.submit("follower", [*shared, *[9] * 30], max_new_tokens=2)
    rig.run()

    assert rig.outcomes["follower"].cached_tokens == 48
