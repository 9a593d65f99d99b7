"""Admission rules seen from outside: what they let in, and what they learn."""

from __future__ import annotations

import random

import pytest
from support.scheduler_rig import SchedulerRig

from runtime.srt.scheduling.admission import RULES
from runtime.srt.scheduling.length_history import LengthHistory, kind_of


@pytest.mark.parametrize("admission", sorted(RULES))
@pytest.mark.parametrize("seed", range(3))
def test_every_request_ends_under_every_rule(admission: str, seed: int) -> None:
    rng = random.Random(seed)
    rig = SchedulerRig(total_tokens=150, max_running_requests=12, admission=admission)
    for number in range(60):
        prompt = [rng.randrange(1, 50) for _ in range(rng.randint(1, 30))]
        rig.submit(f"r{number}", prompt, max_new_tokens=rng.randint(1, 60))
        if rng.random() < 0.5:
            rig.step()
    rig.run()

    assert all(one.finish is not None for one in rig.outcomes.values())
    assert all(one.finish.type != "abort" for one in rig.outcomes.values())


def num_retractions(rig: SchedulerRig) -> int:
    return sum(one.num_retractions for one in rig.outcomes.values())


def loaded_rig(admission: str, **config: object) -> SchedulerRig:
    rig = SchedulerRig(total_tokens=300, max_running_requests=16, admission=admission, **config)
    rng = random.Random(1)
    for number in range(40):
        prompt = [rng.randrange(1, 50) for _ in range(8)]
        rig.submit(f"r{number}", prompt, max_new_tokens=60, ignore_eos=True)
    rig.run()
    return rig


def test_reserving_all_never_retracts_and_prompts_alone_do() -> None:
    assert num_retractions(loaded_rig("reserve-all")) == 0
    assert num_retractions(loaded_rig("prompt-only")) > 0


def test_known_lengths_are_never_retracted_by_the_learnt_rule() -> None:
    assert num_retractions(loaded_rig("learnt")) == 0


def test_an_unknown_kind_is_taken_to_be_of_any_length_up_to_its_limit() -> None:
    curve = LengthHistory().survival(kind_of(None, 100))

    assert curve[0] == pytest.approx(0.99, abs=0.011)
    assert curve[-1] == pytest.approx(0.0, abs=1e-9)


def test_lengths_are_learnt_by_kind() -> None:
    history = LengthHistory()
    for _ in range(100):
        history.add(kind_of("chat", 1000), 20)
        history.add(kind_of("story", 1000), 900)

    chat, story = history.survival(kind_of("chat", 1000)), history.survival(kind_of("story", 1000))
    unseen = history.survival(kind_of("other", 1000))

    edge = 18  # about 180 tokens
    assert chat[edge] < 0.1 < 0.9 < story[edge]
    assert chat[edge] < unseen[edge] < story[edge]


def test_old_lengths_fade() -> None:
    history = LengthHistory()
    for _ in range(300):
        history.add(kind_of(None, 1000), 900)
    for _ in range(600):
        history.add(kind_of(None, 1000), 20)

    assert history.survival(kind_of(None, 1000))[18] < 0.1


def test_learnt_lengths_let_more_in_than_asked_for_lengths_would() -> None:
    """Outputs end by themselves after about 10 of 100 tokens: booking 100 each wastes the pool."""

    def steps(admission: str) -> int:
        rig = SchedulerRig(
            total_tokens=420,
            vocab_size=10,
            max_running_requests=16,
            eos_token_ids=frozenset({0}),
            admission=admission,
        )
        rng = random.Random(2)
        for number in range(150):
            prompt = [rng.randrange(1, 10) for _ in range(8)]
            rig.submit(f"r{number}", prompt, max_new_tokens=100)
        rig.run()
        return rig.num_steps

    assert steps("learnt") < 0.6 * steps("reserve-all")
