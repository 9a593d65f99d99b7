"""Requests that score choices: right scores whatever happens to them, no token computed twice."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
from support.fake_executor import score
from support.fake_launching_executor import FakeLaunchingExecutor
from support.scheduler_rig import SchedulerRig

from runtime.lang.choices import ChoiceScore, ChoicesMethod, decide
from runtime.srt.messages import AbortRequest, ChoiceLogprobs, ChoicePath, ChoiceSet

PROMPT = [1, 2, 3, 4, 5, 6, 7]
UNCONDITIONAL = "unconditional_likelihood_normalized"


def choice_set(*paths: list[int], unscored: int = 0, **fields: Any) -> ChoiceSet:
    return ChoiceSet(paths=[ChoicePath(list(ids), unscored) for ids in paths], **fields)


def expected(prompt: list[int], choices: ChoiceSet) -> list[ChoiceLogprobs]:
    """Each choice as if it stood alone."""
    found = []
    for path in choices.paths:
        ids, first = path.token_ids, path.num_unscored
        own = ids[first:]
        logprobs = [score([*prompt, *ids[:i]], ids[i]) for i in range(first, len(ids))]
        alone = None
        if choices.method == UNCONDITIONAL:
            alone = [0.0, *(score(own[:i], own[i]) for i in range(1, len(own)))]
        found.append(ChoiceLogprobs(logprobs, alone))
    return found


def scored(rig: SchedulerRig, prompt: list[int], choices: ChoiceSet) -> list[ChoiceLogprobs]:
    rig.submit("r", prompt, choices=choices, max_new_tokens=0)
    rig.run()
    outcome = rig.outcomes["r"]
    assert outcome.finish is not None and outcome.finish.type == "length"
    assert outcome.choice_logprobs is not None
    return outcome.choice_logprobs


@pytest.mark.parametrize("overlap_depth", [0, 1])
@pytest.mark.parametrize("page_size", [1, 4])
def test_choices_get_the_scores_that_each_would_get_alone(
    page_size: int, overlap_depth: int
) -> None:
    rig = SchedulerRig(page_size=page_size, overlap_depth=overlap_depth)
    choices = choice_set([8, 9, 10], [8, 9, 11, 12], [8, 9], [13], method=UNCONDITIONAL)

    assert scored(rig, PROMPT, choices) == expected(PROMPT, choices)


@pytest.mark.parametrize("overlap_depth", [0, 1])
@pytest.mark.parametrize("at", range(3))
def test_choices_are_scored_anew_after_a_step_that_found_no_memory(
    at: int, overlap_depth: int
) -> None:
    # A longer prompt in the same step is what ends.
    rig = SchedulerRig(
        overlap_depth=overlap_depth, chunk_tokens=64, make_executor=FakeLaunchingExecutor
    )
    assert isinstance(rig.executor, FakeLaunchingExecutor)
    choices = choice_set([8, 9, 10], [8, 9, 11, 12], [8, 9], [13], method=UNCONDITIONAL)
    faults = iter([False] * at + [True])
    rig.executor.is_memory_short = lambda: next(faults, False)
    rig.submit("r", PROMPT, choices=choices, max_new_tokens=0)
    for number in range(4):
        rig.submit(f"long{number}", [20 + number] * 30, max_new_tokens=0)
        rig.step()
    rig.run()

    assert rig.executor.num_failed == 1
    assert rig.outcomes["r"].choice_logprobs == expected(PROMPT, choices)


def test_a_stem_is_computed_once_and_a_last_token_never() -> None:
    rig = SchedulerRig()
    scored(rig, PROMPT, choice_set([8, 9, 10], [8, 9, 11, 12], [8, 14], [13]))

    # The prompt, then 8, 9 and 11.
    assert rig.executor.step_tokens == [len(PROMPT) + 3]


def test_a_cached_prompt_is_taken_from_the_tree_but_for_its_last_token() -> None:
    rig = SchedulerRig()
    rig.submit("first", PROMPT, max_new_tokens=0)
    rig.run()
    rig.executor.step_tokens.clear()

    scored(rig, PROMPT, choice_set([8, 9], [10, 11]))

    assert rig.executor.step_tokens == [1 + 2]
    assert rig.outcomes["r"].cached_tokens == len(PROMPT) - 1


def test_only_the_prompt_stays_in_the_cache() -> None:
    rig = SchedulerRig()

    scored(rig, PROMPT, choice_set([8, 9], [10, 11]))

    assert rig.memory.stats().evictable == len(PROMPT)


def test_tokens_before_the_first_that_differs_are_not_scored() -> None:
    rig = SchedulerRig()
    choices = choice_set([6, 8, 9], [6, 10], unscored=1)

    assert scored(rig, PROMPT[:5], choices) == expected(PROMPT[:5], choices)


@pytest.mark.parametrize("early_exit", [False, True])
def test_without_a_prompt_the_first_token_is_not_scored(early_exit: bool) -> None:
    rig = SchedulerRig()
    choices = choice_set([8, 9], [8, 10, 11], [12, 13], unscored=1, early_exit=early_exit)

    assert scored(rig, [], choices) == expected([], choices)


@pytest.mark.parametrize("chunk_tokens", [1, 3, 16, None])
@pytest.mark.parametrize("page_size", [1, 4])
def test_scores_do_not_depend_on_how_the_tokens_are_cut_into_steps(
    page_size: int, chunk_tokens: int | None
) -> None:
    if chunk_tokens is not None and chunk_tokens < page_size:
        chunk_tokens = page_size
    rig = SchedulerRig(page_size=page_size, chunk_tokens=chunk_tokens)
    rng = random.Random(page_size)
    paths = [[rng.randrange(3) for _ in range(rng.randrange(1, 6))] for _ in range(12)]
    choices = choice_set(*paths, method=UNCONDITIONAL)

    assert scored(rig, PROMPT, choices) == expected(PROMPT, choices)


def test_many_at_once_beside_running_requests_get_their_own_scores() -> None:
    rig = SchedulerRig(overlap_depth=1, test_retract_every=3)
    rng = random.Random(1)
    asked: dict[str, tuple[list[int], ChoiceSet]] = {}
    for number in range(12):
        prompt = PROMPT[: rng.randrange(1, 8)] + [number % 3]
        paths = [[rng.randrange(4) for _ in range(rng.randrange(1, 5))] for _ in range(5)]
        asked[f"c{number}"] = prompt, choice_set(*paths, early_exit=False)
        rig.submit(f"c{number}", prompt, choices=asked[f"c{number}"][1], max_new_tokens=0)
        rig.submit(f"g{number}", prompt, max_new_tokens=6)
    rig.run()

    assert sum(one.num_retractions for one in rig.outcomes.values()) > 0
    for rid, (prompt, choices) in asked.items():
        assert rig.outcomes[rid].choice_logprobs == expected(prompt, choices)


def test_a_pool_that_holds_one_request_at_a_time_scores_them_in_turn() -> None:
    rig = SchedulerRig(total_tokens=16, overlap_depth=1, chunk_tokens=4)
    choices = choice_set([20, 21, 22, 23], [20, 24, 25], [26, 27, 28])
    for number in range(3):
        rig.submit(f"c{number}", [number, *PROMPT], choices=choices, max_new_tokens=0)
    rig.run()

    for number in range(3):
        found = rig.outcomes[f"c{number}"].choice_logprobs
        assert found == expected([number, *PROMPT], choices)


@pytest.mark.parametrize("steps_before", [0, 1, 2])
def test_an_abort_gives_everything_back(steps_before: int) -> None:
    rig = SchedulerRig(overlap_depth=1, chunk_tokens=4)
    rig.submit("r", PROMPT, choices=choice_set([8, 9, 10], [11, 12, 13]), max_new_tokens=0)
    for _ in range(steps_before):
        rig.step()

    rig.scheduler.receive(AbortRequest("r"))
    rig.run()

    finish = rig.outcomes["r"].finish
    assert finish is not None and finish.type == "abort"


# Early exit


def winner(method: str, found: list[ChoiceLogprobs]) -> int:
    scores = [
        ChoiceScore(
            tuple(range(len(one.logprobs))),
            tuple(one.logprobs),
            None if one.unconditional is None else tuple(one.unconditional),
        )
        for one in found
    ]
    return decide(ChoicesMethod(method), scores).winner


@pytest.mark.parametrize("method", [one.value for one in ChoicesMethod])
def test_early_exit_finds_the_winner_of_all_scores_with_less_work(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def steep(context: Sequence[int], token_id: int) -> float:
        return -12.0 * (-1.0 - score(context, token_id))  # from 0 to -12, as a model's are

    monkeypatch.setattr("support.fake_executor.score", steep)
    rng = random.Random(7)
    num_full = num_early = 0
    for _ in range(30):
        paths = [[rng.randrange(40) for _ in range(rng.choice([1, 4, 9]))] for _ in range(12)]
        paths += [paths[0][:1] + one[:4] for one in paths[6:]]
        sets = [choice_set(*paths, method=method, early_exit=exits) for exits in (False, True)]
        rigs = [SchedulerRig(total_tokens=512, context_length=512) for _ in sets]

        full, early = [scored(rig, PROMPT, one) for rig, one in zip(rigs, sets, strict=True)]

        assert winner(method, early) == winner(method, full)
        for one, other in zip(early, full, strict=True):
            pairs = zip(one.logprobs, other.logprobs, strict=True)
            assert all(a in (None, b) for a, b in pairs)
        num_full += sum(rigs[0].executor.step_tokens)
        num_early += sum(rigs[1].executor.step_tokens)
    assert num_early < num_full


def test_greedy_selection_is_decided_by_first_tokens_that_differ() -> None:
    rig = SchedulerRig()
    choices = choice_set([8, 9, 10], [11, 12], method="greedy_token_selection", early_exit=True)

    found = scored(rig, PROMPT, choices)

    assert rig.executor.step_tokens == [len(PROMPT)]
    assert [one.logprobs[1:] for one in found] == [[None, None], [None]]


def test_a_small_set_with_early_exit_takes_one_step() -> None:
    rig = SchedulerRig()

    scored(rig, PROMPT, choice_set([8, 9, 10], [11, 12], early_exit=True))

    assert len(rig.executor.step_tokens) == 1
