"""Random arrivals, aborts, pins, tiny pools: every request ends once, with the model's own tokens.

The fake model reads its context from the KV slots, so any slot freed, shared or overwritten wrongly
changes an answer. Memory is checked after every step. RANDOM_LOAD_SEED, any text, gives other runs.
"""

from __future__ import annotations

import os
import random
from dataclasses import dataclass

import pytest
from support.fake_executor import continuation, score
from support.scheduler_rig import Outcome, SchedulerRig

from runtime.srt.memory.kv_memory import KvMemory
from runtime.srt.memory.memory_checks import check_memory
from runtime.srt.messages import AbortRequest, FlushCache, UnpinPrefix
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
        eviction_policy=rng.choice(["lru", "lru", "lfu", "slru", "fifo", "priority"]),
        pinned_share=rng.choice([0.0, 0.25, 0.6]),
        context_length=44,
        max_running_requests=rng.choice([1, 2, 5, 9]),
        chunk_tokens=rng.choice([None, 4, 8, 16]),
        policy=rng.choice(["lpm", "lpm", *POLICIES]),
        program_order=rng.random() < 0.4,
        admission=rng.choice(sorted(RULES)),
        in_batch_sharing_min_tokens=rng.choice([0, 1, 4, 32]),
        in_batch_sharing_max_cached_tokens=rng.choice([None, None, 3]),
        ageing_stride=rng.choice([1, 8, 1000]),
        quotas=rng.choice([{}, {"slow": 3000.0}, {"slow": 3000.0, "fast": 30000.0}]),
        max_wait_seconds=rng.choice([None, 0.05]),
        max_prefill_slice_ms=rng.choice([None, 1.0]),
        preemption_threshold=rng.choice([0, 10]),
        overlap_depth=rng.choice([0, 1]),
        test_retract_every=rng.choice([0, 0, 2, 5]),
        conservativeness=rng.choice([0.01, 0.3, 1.0]),
        mix_decode_into_prefill=rng.random() < 0.7,
        max_queued_requests=rng.choice([None, None, 6]),
    )


@dataclass(frozen=True)
class Asked:
    """What a request was for, as far as its answer depends on it."""

    prompt: list[int]
    max_new: int
    start: int | None
    has_deadline: bool
    pins: bool


def _submit(rig: SchedulerRig, rng: random.Random, rid: str) -> Asked:
    prompt = [rng.randrange(VOCABULARY) for _ in range(rng.randint(1, 24))]
    pins = rng.random() < 0.06
    max_new = 0 if pins else rng.randint(0, 40 - len(prompt))
    start = rng.choice([None, None, 0, rng.randint(0, len(prompt))])
    timeout_seconds = rng.choice([None, None, None, None, None, None, 0.03, 0.5])
    rig.submit(
        rid,
        prompt,
        max_new_tokens=max_new,
        logprobs=None if start is None else LogprobOptions(prompt_start=start),
        stream=rng.random() < 0.7,
        namespace=rng.choice([None, None, "a"]),
        ignore_eos=rng.random() < 0.2,
        priority=rng.choice([0, 0, 0, 1, 20]),
        tenant=rng.choice([None, "fast", "slow"]),
        program_id=rng.choice([None, "p", "q", "r"]),
        timeout_seconds=timeout_seconds,
        pin_seconds=rng.choice([0.02, 0.3, 1e6]) if pins else None,
    )
    return Asked(prompt, max_new, start, timeout_seconds is not None, pins)


@pytest.mark.parametrize("seed", range(120))
def test_every_request_ends_once_with_the_models_tokens(seed: int) -> None:
    rng = random.Random(f"{seed} {os.environ.get('RANDOM_LOAD_SEED', '')}")
    rig = _random_rig(rng)
    asked: dict[str, Asked] = {}
    aborted: set[str] = set()

    for number in range(120):
        asked[f"r{number}"] = _submit(rig, rng, f"r{number}")
        for _ in range(rng.choice([0, 0, 1, 3])):
            rig.step()
            check_memory(rig.memory)
        if rng.random() < 0.15:
            victim = rng.choice(list(asked))
            aborted.add(victim)
            rig.scheduler.receive(AbortRequest(victim))
        if rng.random() < 0.05:
            rig.scheduler.receive(UnpinPrefix(number, rng.choice(list(asked))))
        if rng.random() < 0.05:
            rig.scheduler.receive(FlushCache(number, rng.choice([0.0, 0.05])))
    rig.run()
    check_memory(rig.memory)

    for rid, facts in asked.items():
        _check_outcome(rig.outcomes[rid], facts, rid in aborted, rig.memory)
    rig.now += 1e7
    rig.step()
    assert rig.memory.stats().protected == 0, "pins end by the clock"


def _check_outcome(outcome: Outcome, facts: Asked, was_aborted: bool, memory: KvMemory) -> None:
    finish = outcome.finish
    assert finish is not None, "a request was lost"
    expected = continuation(facts.prompt, facts.max_new, VOCABULARY)
    if finish.type == "length":
        assert outcome.token_ids == expected
        _check_logprobs(outcome.prompt_logprobs, facts.prompt, facts.start)
        assert (outcome.pin is not None) == facts.pins
        if outcome.pin is not None:
            page = memory.page_size
            assert outcome.pin.num_tokens == len(facts.prompt) // page * page > 0
        return
    assert finish.type == "abort"
    assert outcome.token_ids == expected[: len(outcome.token_ids)]
    assert outcome.pin is None
    if finish.status_code is None:
        assert was_aborted
    elif finish.status_code == 503:
        text = finish.message or ""
        assert "the queue is full" in text or "of them pinned" in text
    elif finish.status_code == 504:
        assert facts.has_deadline
    else:
        assert finish.status_code == 400 and facts.pins, finish


def _check_logprobs(got: object, prompt: list[int], start: int | None) -> None:
    if start is None:
        assert got is None
        return
    assert isinstance(got, list)
    expected = [None if i == 0 else score(prompt[:i], prompt[i]) for i in range(start, len(prompt))]
    assert [p.logprob for p in got] == expected
