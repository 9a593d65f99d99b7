"""Steps on a device: launched before the last one's tokens are known, with the same answers."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
from support.fake_executor import continuation, next_token
from support.fake_grammar import HashGrammar
from support.fake_launching_executor import FakeLaunchingExecutor
from support.scheduler_rig import SchedulerRig

from runtime.srt.messages import AbortRequest
from runtime.srt.sampling_params import LogprobOptions

VOCABULARY = 40
END_ID = VOCABULARY - 1


def _rig(**config: Any) -> tuple[SchedulerRig, FakeLaunchingExecutor]:
    config = {"overlap_depth": 1, "vocab_size": VOCABULARY, **config}
    rig = SchedulerRig(make_executor=FakeLaunchingExecutor, **config)
    assert isinstance(rig.executor, FakeLaunchingExecutor)
    return rig, rig.executor


def test_a_step_is_launched_before_the_one_before_it_is_collected() -> None:
    rig, executor = _rig()
    rig.submit("a", [1, 2, 3], max_new_tokens=12)

    rig.step()
    assert executor.num_in_flight == 1, "the first step is launched, and not waited for"
    rig.run()

    assert executor.most_in_flight == 2
    assert rig.outcomes["a"].token_ids == continuation([1, 2, 3], 12, VOCABULARY)


def test_without_overlap_no_step_is_in_flight() -> None:
    rig, executor = _rig(overlap_depth=0)
    rig.submit("a", [1, 2, 3], max_new_tokens=5)

    rig.run()

    assert executor.most_in_flight == 0
    assert rig.outcomes["a"].token_ids == continuation([1, 2, 3], 5, VOCABULARY)


def test_penalties_see_the_token_of_the_step_before() -> None:
    # The fake compares what a row shows of its output with the context that the device has.
    rig, executor = _rig()
    rig.submit("a", [1, 2], max_new_tokens=9, frequency_penalty=0.5)
    rig.submit("b", [3, 4, 5], max_new_tokens=9)

    rig.run()

    assert rig.outcomes["a"].token_ids == continuation([1, 2], 9, VOCABULARY)
    assert rig.outcomes["b"].token_ids == continuation([3, 4, 5], 9, VOCABULARY)
    assert executor.most_in_flight == 2, "the forward pass is launched all the same"


class _ClosedByTen(HashGrammar):
    """Any number of tokens below 10, then 10, 11 and the end."""

    def allowed(self, output: Sequence[int]) -> list[int]:
        if 11 in output:
            return [self.end_id]
        return [11] if 10 in output else [10, *range(10)]


def test_a_grammar_that_replaces_a_token_makes_the_next_forward_pass_run_again() -> None:
    # At the end of its budget an answer is closed by other tokens than were drawn.
    num_again = 0
    for seed in range(10):
        rig, executor = _rig(eos_token_ids=frozenset({END_ID}), jump_forward=False)
        source = rig.grammars.add("g", _ClosedByTen(seed, 0, END_ID))
        rig.submit("a", [seed], max_new_tokens=7, grammar=source)
        rig.submit("b", [1, seed], max_new_tokens=12, ignore_eos=True)

        rig.run()

        output = rig.outcomes["a"].token_ids
        text = [one for one in output if one != END_ID]
        assert text[-2:] == [10, 11] and all(one < 10 for one in text[:-2])
        assert rig.outcomes["b"].token_ids == continuation([1, seed], 12, VOCABULARY)
        num_again += executor.num_forwards_again
    assert num_again > 0


def test_an_aborted_request_leaves_the_others_tokens_alone() -> None:
    rig, _ = _rig()
    rig.submit("a", [1, 2, 3], max_new_tokens=20)
    rig.submit("b", [4, 5, 6], max_new_tokens=20)
    for _ in range(4):
        rig.step()

    rig.scheduler.receive(AbortRequest("a"))
    rig.submit("c", [7, 8], max_new_tokens=10)
    rig.run()

    assert rig.outcomes["b"].token_ids == continuation([4, 5, 6], 20, VOCABULARY)
    assert rig.outcomes["c"].token_ids == continuation([7, 8], 10, VOCABULARY)


@pytest.mark.parametrize("seed", range(60))
def test_any_mixture_of_requests_gets_its_own_answers(seed: int) -> None:
    rng = random.Random(seed)
    rig, _ = _rig(
        total_tokens=rng.choice([64, 100, 200]),
        page_size=rng.choice([1, 1, 4]),
        context_length=44,
        max_running_requests=rng.choice([1, 2, 5, 9]),
        chunk_tokens=rng.choice([None, 4, 16]),
        jump_forward=rng.random() < 0.7,
        test_retract_every=rng.choice([0, 0, 2, 5]),
        mix_decode_into_prefill=rng.random() < 0.7,
        eos_token_ids=frozenset({END_ID}),
    )
    expected: dict[str, list[int]] = {}

    for number in range(40):
        rid, prompt = f"r{number}", [rng.randrange(3) for _ in range(rng.randint(1, 20))]
        max_new = rng.randint(1, 42 - len(prompt))
        source = None
        output = continuation(prompt, max_new, VOCABULARY)
        if rng.random() < 0.5:
            grammar = HashGrammar(number, rng.randint(0, 20), END_ID)
            source = rig.grammars.add(f"g{number}", grammar)
            output = _greedy(prompt, grammar)[:max_new]
        expected[rid] = output
        rig.submit(
            rid,
            prompt,
            max_new_tokens=max_new,
            ignore_eos=source is None,
            presence_penalty=rng.choice([0.0, 0.0, 0.3]),
            logprobs=rng.choice([None, None, LogprobOptions(prompt_start=0)]),
            grammar=source,
        )
        for _ in range(rng.choice([0, 1, 3])):
            rig.step()
    rig.run()

    assert {rid: rig.outcomes[rid].token_ids for rid in expected} == expected


def _greedy(prompt: list[int], grammar: HashGrammar) -> list[int]:
    output: list[int] = []
    while END_ID not in output:
        token = next_token([*prompt, *output], VOCABULARY)
        allowed = grammar.allowed(output)
        while token not in allowed:
            token = (token + 1) % VOCABULARY
        output.append(token)
    return output
