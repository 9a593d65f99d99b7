"""Random arrivals, aborts and tiny pools: every request ends once, and with the model's own tokens.

The fake model reads its context from the KV slots, so any slot freed, shared or overwritten wrongly
changes an answer. The accounting identity is checked after every step.
"""

from __future__ import annotations

import random

import pytest
from support.fake_executor import continuation, score
from support.scheduler_rig import SchedulerRig

from runtime.srt.messages import AbortRequest, FlushCache
from runtime.srt.sampling_params import LogprobOptions
from runtime.srt.scheduling.admission import RULES
from runtime.srt.scheduling.queue_order import POLICIES

VOCABULARY = 3  # small, so that prefixes collide


def _random_rig(rng: random.Random) -> SchedulerRig:
    page_size = rng.choice([1, 1, 2, 4])
    return SchedulerRig(
        total_tokens=rng.choice([48, 64, 100, 200]),
        page_size=page_size,
        vocab_size=VOCABULARY,
        enable_cache=rng.random() < 0.85,
        context_length=44,
        max_running_requests=rng.choice([1, 2, 5, 9]),
        chunk_tokens=rng.choice([None, 4, 8, 16]),
        policy=rng.choice(["lpm", "lpm", *POLICIES]),
        admission=rng.choice(sorted(RULES)),
        max_wait_seconds=rng.choice([None, 0.05]),
        max_prefill_slice_ms=rng.choice([None, 1.0]),
        preemption_threshold=rng.choice([0, 10]),
        overlap_depth=rng.choice([0, 1]),
        test_retract_every=rng.choice([0, 0, 2, 5]),
        conservativeness=rng.choice([0.01, 0.3, 1.0]),
        mix_decode_into_prefill=rng.random() < 0.7,
        max_queued_requests=rng.choice([None, None, 6]),
    )


def _submit(rig: SchedulerRig, rng: random.Random, number: int) -> tuple[str, dict[str, object]]:
    prompt = [rng.randrange(VOCABULARY) for _ in range(rng.randint(1, 24))]
    max_new = rng.randint(0, 40 - len(prompt))
    start = rng.choice([None, None, 0, rng.randint(0, len(prompt))])
    logprobs = None if start is None else LogprobOptions(prompt_start=start)
    rid = f"r{number}"
    rig.submit(
        rid,
        prompt,
        max_new_tokens=max_new,
        logprobs=logprobs,
        stream=rng.random() < 0.7,
        namespace=rng.choice([None, None, "a"]),
        ignore_eos=rng.random() < 0.2,
        priority=rng.choice([0, 0, 0, 1, 20]),
    )
    return rid, {"prompt": prompt, "max_new": max_new, "start": start}


@pytest.mark.parametrize("seed", range(120))
def test_every_request_ends_once_with_the_models_tokens(seed: int) -> None:
    rng = random.Random(seed)
    rig = _random_rig(rng)
    asked: dict[str, dict[str, object]] = {}
    aborted: set[str] = set()

    for number in range(120):
        rid, facts = _submit(rig, rng, number)
        asked[rid] = facts
        for _ in range(rng.choice([0, 0, 1, 3])):
            rig.step()
        if rng.random() < 0.15:
            victim = rng.choice(list(asked))
            aborted.add(victim)
            rig.scheduler.receive(AbortRequest(victim))
        if rng.random() < 0.05:
            rig.scheduler.receive(FlushCache(number, rng.choice([0.0, 0.05])))
    rig.run()

    for rid, facts in asked.items():
        outcome = rig.outcomes[rid]
        assert outcome.finish is not None, f"{rid} was lost"
        prompt = facts["prompt"]
        assert isinstance(prompt, list)
        expected = continuation(prompt, int(str(facts["max_new"])), VOCABULARY)
        if outcome.finish.type == "length":
            assert outcome.token_ids == expected, rid
            _check_logprobs(outcome.prompt_logprobs, prompt, facts["start"])
        else:
            assert outcome.finish.type == "abort", rid
            assert rid in aborted or outcome.finish.status_code == 503, (rid, outcome.finish)
            assert outcome.token_ids == expected[: len(outcome.token_ids)], rid


def _check_logprobs(got: object, prompt: list[int], start: object) -> None:
    if start is None:
        assert got is None
        return
    assert isinstance(start, int) and isinstance(got, list)
    expected = [None if i == 0 else score(prompt[:i], prompt[i]) for i in range(start, len(prompt))]
    assert [p.logprob for p in got] == expected
