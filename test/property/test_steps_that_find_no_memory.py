"""A step that finds no memory on the device ends one request at most; others get their own tokens.

Free and constrained requests, prompts that are scored, aborts, retractions, tiny pools; steps
overlapped or not. RANDOM_LOAD_SEED, any text, gives other runs.
"""

from __future__ import annotations

import itertools
import os
import random
from dataclasses import dataclass

import pytest
from support.fake_executor import continuation, next_token, score
from support.fake_grammar import HashGrammar
from support.fake_launching_executor import FakeLaunchingExecutor
from support.scheduler_rig import Outcome, SchedulerRig

from runtime.srt.memory.memory_checks import check_memory
from runtime.srt.messages import AbortRequest, SchedulerState, StateQuery
from runtime.srt.sampling_params import LogprobOptions

VOCABULARY = 12
END_ID = VOCABULARY - 1


@dataclass(frozen=True)
class _Asked:
    prompt: list[int]
    max_new: int
    start: int | None
    grammar: HashGrammar | None

    @property
    def expected(self) -> list[int]:
        if self.grammar is None:
            return continuation(self.prompt, self.max_new, VOCABULARY)
        output: list[int] = []
        while END_ID not in output and len(output) < self.max_new:
            token = next_token([*self.prompt, *output], VOCABULARY)
            allowed = self.grammar.allowed(output)
            while token not in allowed:
                token = (token + 1) % VOCABULARY
            output.append(token)
        return output


def _random_rig(rng: random.Random) -> tuple[SchedulerRig, FakeLaunchingExecutor]:
    rig = SchedulerRig(
        total_tokens=rng.choice([64, 100, 200]),
        page_size=rng.choice([1, 1, 4]),
        vocab_size=VOCABULARY,
        enable_cache=rng.random() < 0.85,
        context_length=44,
        max_running_requests=rng.choice([1, 2, 5, 9]),
        chunk_tokens=rng.choice([None, 4, 16]),
        policy=rng.choice(["lpm", "lpm", "fcfs", "dfs-weight"]),
        admission=rng.choice(["ratio", "learnt", "prompt-only"]),
        in_batch_sharing_min_tokens=rng.choice([1, 4, 32]),
        overlap_depth=rng.choice([0, 1, 1]),
        test_retract_every=rng.choice([0, 0, 5]),
        conservativeness=rng.choice([0.01, 1.0]),
        mix_decode_into_prefill=rng.random() < 0.7,
        eos_token_ids=frozenset({END_ID}),
        make_executor=FakeLaunchingExecutor,
    )
    assert isinstance(rig.executor, FakeLaunchingExecutor)
    return rig, rig.executor


@pytest.mark.parametrize("seed", range(80))
def test_it_ends_one_request_and_no_other(seed: int) -> None:
    rng = random.Random(f"{seed} {os.environ.get('RANDOM_LOAD_SEED', '')}")
    rig, executor = _random_rig(rng)
    often = rng.choice([0.02, 0.1, 0.3])
    calls = itertools.count()
    executor.is_memory_short = lambda: next(calls) == 10 or rng.random() < often
    asked: dict[str, _Asked] = {}
    aborted: set[str] = set()

    for number in range(60):
        prompt = [rng.randrange(3) for _ in range(rng.randint(1, 20))]
        max_new = rng.randint(1, 42 - len(prompt))
        grammar, source = None, None
        if rng.random() < 0.5:
            grammar = HashGrammar(number, rng.randint(0, 20), END_ID)
            source = rig.grammars.add(f"g{number}", grammar)
        start = rng.choice([None, None, rng.randint(0, len(prompt))])
        asked[f"r{number}"] = _Asked(prompt, max_new, start, grammar)
        rig.submit(
            f"r{number}",
            prompt,
            max_new_tokens=max_new,
            stream=rng.random() < 0.7,
            ignore_eos=grammar is None,
            logprobs=None if start is None else LogprobOptions(prompt_start=start),
            grammar=source,
        )
        for _ in range(rng.choice([0, 1, 3])):
            rig.step()
            check_memory(rig.memory)
        if rng.random() < 0.1:
            victim = rng.choice(list(asked))
            aborted.add(victim)
            rig.scheduler.receive(AbortRequest(victim))
    rig.run()
    check_memory(rig.memory)

    failed = {rid for rid, one in rig.outcomes.items() if _ran_out_of_memory(one)}
    # None where all rows of the step had ended by the one before it.
    assert 0 < len(failed) <= executor.num_failed
    for rid, facts in asked.items():
        outcome = rig.outcomes[rid]
        assert outcome.finish is not None, f"{rid} was lost"
        if outcome.finish.type == "abort":
            assert rid in failed | aborted, (rid, outcome.finish)
            assert outcome.token_ids == facts.expected[: len(outcome.token_ids)], rid
            continue
        assert outcome.token_ids == facts.expected, rid
        _check_logprobs(outcome, facts)


def _ran_out_of_memory(outcome: Outcome) -> bool:
    finish = outcome.finish
    return finish is not None and finish.status_code == 503 and "no memory" in str(finish.message)


def _check_logprobs(outcome: Outcome, facts: _Asked) -> None:
    """Each position is scored once, though a step that scored it may have come to nothing."""
    if facts.start is None:
        assert outcome.prompt_logprobs is None
        return
    text = [*facts.prompt, *outcome.token_ids]
    found = [*(outcome.prompt_logprobs or []), *outcome.output_logprobs]
    assert [one.token_id for one in found] == text[facts.start :]
    assert [one.logprob for one in found] == [
        None if place == 0 else score(text[:place], text[place])
        for place in range(facts.start, len(text))
    ]


@pytest.mark.parametrize("overlap_depth", [0, 1])
def test_the_request_with_most_tokens_in_the_step_ends(overlap_depth: int) -> None:
    rig = SchedulerRig(overlap_depth=overlap_depth, make_executor=FakeLaunchingExecutor)
    executor = rig.executor
    assert isinstance(executor, FakeLaunchingExecutor)
    rig.submit("short", [1, 2, 3], max_new_tokens=20)
    for _ in range(4):
        rig.step()
    rig.submit("long", list(range(12)), max_new_tokens=20)
    faults = iter([True])
    executor.is_memory_short = lambda: next(faults, False)

    rig.run()

    failed = rig.outcomes["long"].finish
    assert failed is not None and failed.status_code == 503
    assert failed.error_type == "overloaded_error" and "no memory for" in str(failed.message)
    assert rig.outcomes["short"].token_ids == continuation([1, 2, 3], 20, 50)


def test_an_answer_that_ended_in_the_step_before_is_not_the_one_that_fails() -> None:
    # With overlap its row is in the step that fails: nobody had seen its last token yet.
    expected = continuation([1, 2, 3], 6, 50)
    rig = SchedulerRig(overlap_depth=1, make_executor=FakeLaunchingExecutor)
    executor = rig.executor
    assert isinstance(executor, FakeLaunchingExecutor)
    rig.submit("a", [1, 2, 3], max_new_tokens=20, stop_token_ids=(expected[5],))
    while len(rig.outcomes["a"].token_ids) < 5:
        rig.step()
    executor.is_memory_short = lambda: True

    rig.run()

    assert executor.num_failed == 1
    assert rig.outcomes["a"].token_ids == expected
    finish = rig.outcomes["a"].finish
    assert finish is not None and finish.type == "stop"


def test_a_step_without_memory_says_nothing_about_the_pool() -> None:
    rig = SchedulerRig(make_executor=FakeLaunchingExecutor)
    executor = rig.executor
    assert isinstance(executor, FakeLaunchingExecutor)
    for number in range(6):
        rig.submit(f"r{number}", [number] * 3, max_new_tokens=20)
    for _ in range(5):
        rig.step()
    before = _state(rig)
    faults = iter([True])
    executor.is_memory_short = lambda: next(faults, False)

    rig.step()

    after = _state(rig)
    assert executor.num_failed == 1 and after.num_waiting == 5
    assert after.counters.retractions == before.counters.retractions == 0
    # It decays as after any step that found room.
    assert before.new_token_ratio - 0.01 < after.new_token_ratio < before.new_token_ratio


def _state(rig: SchedulerRig) -> SchedulerState:
    rig.scheduler.receive(StateQuery(1))
    (state,) = rig.scheduler.take_replies()
    assert isinstance(state, SchedulerState)
    return state
