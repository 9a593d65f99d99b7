"""Admission rules seen from outside: what they let in, and what they learn."""

from __future__ import annotations

import random

import numpy as np
import pytest
from support.scheduler_rig import SchedulerRig

from runtime.srt.scheduling.admission import RULES
from runtime.srt.scheduling.length_history import EDGES, Kind, LengthHistory, kind_of
from runtime.srt.scheduling.survival import SurvivalCurves


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


def share_longer(
    history: LengthHistory, kind: Kind, length: int, running: tuple[int, ...] = ()
) -> float:
    curves = SurvivalCurves()
    kinds = np.zeros(len(running), dtype=np.int64)
    curves.fit(history.counts(kind)[None], kinds, np.array(running, dtype=np.int64))
    zero = np.zeros(1, dtype=np.int64)
    return float(curves.still_running(zero, zero, np.array([0, length]))[0, 1])


@pytest.mark.parametrize("length", [1, 30, 64, 99])
def test_an_unknown_kind_is_taken_to_be_of_any_length_up_to_its_limit(length: int) -> None:
    share = share_longer(LengthHistory(), kind_of(None, 127), length)

    assert share == pytest.approx(1 - length / 128, abs=1e-9)


def test_lengths_are_learnt_by_kind() -> None:
    history = LengthHistory()
    for _ in range(100):
        history.add(kind_of("chat", 1000), 20)
        history.add(kind_of("story", 1000), 900)

    chat = share_longer(history, kind_of("chat", 1000), 180)
    story = share_longer(history, kind_of("story", 1000), 180)
    unseen = share_longer(history, kind_of("other", 1000), 180)

    assert chat < 0.1 < 0.9 < story
    assert chat < unseen < story


def test_old_lengths_fade() -> None:
    history = LengthHistory()
    for _ in range(300):
        history.add(kind_of(None, 1000), 900)
    for _ in range(600):
        history.add(kind_of(None, 1000), 20)

    assert share_longer(history, kind_of(None, 1000), 180) < 0.1


def test_the_first_short_outputs_of_a_burst_do_not_speak_for_those_that_still_run() -> None:
    """16 of 100 have ended after 10 tokens; the others run at 200."""
    history = LengthHistory()
    for _ in range(16):
        history.add(kind_of(None, 500), 10)

    ended_alone = share_longer(history, kind_of(None, 500), 150)
    with_the_rest = share_longer(history, kind_of(None, 500), 150, running=(200,) * 84)

    assert ended_alone < 0.35
    assert with_the_rest == pytest.approx(0.84, abs=0.05)


def test_outputs_that_their_limits_cut_do_not_count_as_ended() -> None:
    history = LengthHistory()
    for length in range(520, 1000, 5):
        history.add(kind_of(None, length), length, was_cut=True)

    assert share_longer(history, kind_of(None, 1000), 510) > 0.9


def test_of_four_that_reached_a_bin_one_ended_in_it() -> None:
    """As the estimate has it: who runs or was cut beyond a bin has passed it."""
    counts = np.zeros((1, 2, len(EDGES)))
    counts[0, 0, 3] = 1.0  # ended after 4 tokens
    counts[0, 1, :10] = 1.0  # was cut far beyond
    curves, zero = SurvivalCurves(), np.zeros(1, dtype=np.int64)
    curves.fit(counts, np.zeros(2, dtype=np.int64), np.array([200, 300]))

    shares = curves.still_running(zero, zero, np.array([0, 3, 4, 150]))[0]

    assert shares == pytest.approx([1.0, 1.0, 0.75, 0.75])


def test_lengths_beyond_all_bins_can_be_asked_for() -> None:
    assert share_longer(LengthHistory(), kind_of(None, 2**21), 2**22) == pytest.approx(0.0)


def test_outputs_that_ignore_stops_run_to_their_limit() -> None:
    curves = SurvivalCurves()
    zero = np.zeros(1, dtype=np.int64)
    curves.fit(LengthHistory().counts(None)[None], zero, np.array([7]))

    assert curves.still_running(zero, np.array([7]), np.array([0, 900]))[0, 1] == 1.0


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
