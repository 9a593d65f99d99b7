"""The sampler beside plain numpy: order of changes, cuts, ties, draws and log-probabilities."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from support.sampling_reference import probabilities

from runtime.srt.execution.draw import draw, uniform
from runtime.srt.execution.forward_batch import SampleRow
from runtime.srt.execution.logprobs import MIN_LOGPROB
from runtime.srt.execution.sampler import Sampler
from runtime.srt.execution.top_candidates import top_candidates
from runtime.srt.sampling_params import LogprobOptions, SamplingParams

GREEDY = SamplingParams(temperature=0.0)
Array = npt.NDArray[np.float64]


def row(params: SamplingParams = GREEDY, **fields: Any) -> SampleRow:
    defaults: dict[str, Any] = {
        "batch_row": 0,
        "seed": 0,
        "position": 0,
        "prompt_ids": [],
        "output_ids": [],
    }
    return SampleRow(params=params, **{**defaults, **fields})


def sample_ids(logits: torch.Tensor, rows: list[SampleRow]) -> list[int]:
    return [one.token_id for one in Sampler(logits.shape[1]).sample(logits, rows)]


def random_logits(rows: int, vocab_size: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, vocab_size, generator=torch.Generator().manual_seed(seed)) * 3


def test_greedy_takes_the_largest_logit_and_the_lowest_id_on_ties() -> None:
    logits = torch.tensor([[0.0, 2.0, 2.0], [-1.0, -math.inf, -1.0], [math.inf, 0.0, math.inf]])

    assert sample_ids(logits, [row(), row(), row()]) == [1, 0, 0]
    assert sample_ids(logits, [row(SamplingParams(top_k=1))] * 3) == [1, 0, 0]


def test_a_nan_fails_its_own_row_only() -> None:
    logits = random_logits(3, 50)
    expected = sample_ids(logits, [row()] * 3)
    logits[1, 7] = math.nan

    drawn = Sampler(50).sample(logits, [row(), row(), row(SamplingParams(), seed=3)])

    assert drawn[0].token_id == expected[0] and drawn[0].error is None
    assert drawn[1].error is not None and "NaN" in drawn[1].error
    assert drawn[2].error is None


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=0.0, repetition_penalty=1.7),
        SamplingParams(temperature=0.0, repetition_penalty=0.4),
        SamplingParams(temperature=0.0, frequency_penalty=1.1, presence_penalty=-0.7),
        SamplingParams(
            temperature=0.0,
            repetition_penalty=1.3,
            frequency_penalty=0.5,
            presence_penalty=0.5,
            logit_bias=((3, 2.5), (8, -100.0)),
        ),
    ],
)
def test_penalties_equal_their_definition(params: SamplingParams) -> None:
    vocab_size = 12
    for seed in range(40):
        logits = random_logits(1, vocab_size, seed)
        rng = np.random.default_rng(seed)
        prompt = rng.integers(0, vocab_size, 4).tolist()
        output = rng.integers(0, vocab_size, 6).tolist()

        expected = logits[0].double().numpy().copy()
        for i in set(prompt + output):
            factor = params.repetition_penalty
            expected[i] = expected[i] / factor if expected[i] > 0 else expected[i] * factor
        for i, count in Counter(output).items():
            expected[i] -= count * params.frequency_penalty + params.presence_penalty
        for i, bias in params.logit_bias:
            expected[i] += bias
        expected[5] = -np.inf

        fields = {"prompt_ids": prompt, "output_ids": output, "suppressed_ids": (5,)}
        assert sample_ids(logits, [row(params, **fields)]) == [int(expected.argmax())], seed


def test_the_logits_given_are_not_changed() -> None:
    logits = random_logits(2, 30)
    before = logits.clone()
    params = SamplingParams(repetition_penalty=1.5, logit_bias=((1, 5.0),), top_p=0.5, min_p=0.1)

    Sampler(30).sample(logits, [row(params, prompt_ids=[1, 2], suppressed_ids=(4,))] * 2)

    assert torch.equal(logits, before)


def test_suppressed_ids_are_never_drawn_even_if_nothing_else_is_possible() -> None:
    logits = torch.full((1, 4), -math.inf)
    logits[0, 0] = 1.0

    assert sample_ids(logits, [row(suppressed_ids=(0, 1))]) == [2]
    assert sample_ids(logits, [row(SamplingParams(), suppressed_ids=(0, 1))]) == [2]


DISTRIBUTIONS = [
    SamplingParams(),
    SamplingParams(temperature=0.6),
    SamplingParams(temperature=2.5, top_k=7),
    SamplingParams(top_p=0.8),
    SamplingParams(min_p=0.15),
    SamplingParams(temperature=1.3, top_k=20, top_p=0.9, min_p=0.02),
]


@pytest.mark.parametrize("params", DISTRIBUTIONS)
def test_draws_follow_the_distribution(params: SamplingParams) -> None:
    logits = random_logits(1, 40, seed=5)[0]
    expected = probabilities(logits.numpy(), params)
    num_draws = 3000

    counts = np.bincount(
        [draw(logits, params, uniform(9, position)) for position in range(num_draws)], minlength=40
    )

    assert counts[expected == 0].sum() == 0
    kept = expected > 0
    chi_square = ((counts - num_draws * expected)[kept] ** 2 / (num_draws * expected[kept])).sum()
    freedom = kept.sum() - 1
    # Five standard deviations above the mean of the chi-square distribution.
    assert chi_square < freedom + 5 * math.sqrt(2 * freedom)


@pytest.mark.parametrize("params", DISTRIBUTIONS)
def test_each_token_takes_its_share_of_the_unit_interval(params: SamplingParams) -> None:
    logits = random_logits(1, 40, seed=6)[0]
    expected = probabilities(logits.numpy(), params)
    places = (np.arange(1500) + 0.5) / 1500

    counts = np.bincount([draw(logits, params, u) for u in places], minlength=40)

    assert np.abs(counts / 1500 - expected).max() < 2 / 1500 + 1e-6


def test_top_p_keeps_the_smallest_set_that_reaches_it() -> None:
    logits = torch.tensor([0.5, 0.25, 0.125, 0.125]).log()

    def reachable(top_p: float) -> set[int]:
        params = SamplingParams(top_p=top_p)
        return {draw(logits, params, u / 100) for u in range(100)}

    assert reachable(0.4) == {0}
    assert reachable(0.51) == {0, 1}
    assert reachable(0.8) == {0, 1, 2}
    assert reachable(0.95) == {0, 1, 2, 3}


def test_top_k_keeps_exactly_k_and_the_lowest_ids_on_ties() -> None:
    logits = torch.tensor([1.0, 2.0, 2.0, 2.0, 2.0, 0.0])
    params = SamplingParams(top_k=2)

    assert {draw(logits, params, u / 50) for u in range(50)} == {1, 2}


@pytest.mark.parametrize("temperature", [0.3, 1.0, 40.0])
def test_a_nucleus_of_any_size_is_found_in_a_large_vocabulary(temperature: float) -> None:
    logits = random_logits(1, 20_000, seed=2)[0]
    params = SamplingParams(temperature=temperature, top_p=0.9)
    expected = probabilities(logits.numpy(), params)
    order = np.argsort(-logits.numpy(), kind="stable")
    cdf = np.cumsum(expected[order])

    for u in (0.0, 0.1, 0.5, 0.9, 0.999999):
        index = int(np.flatnonzero(order == draw(logits, params, u))[0])
        # float32 scaling moves the boundaries by about 1e-6 of the mass.
        assert (cdf[index - 1] if index else 0.0) <= u + 1e-5
        assert cdf[index] >= u - 1e-5


def test_extreme_temperatures_and_infinite_logits_draw_something_sane() -> None:
    logits = torch.tensor([1.0, 3.0, -math.inf, 2.9])

    assert draw(logits, SamplingParams(temperature=2e-6), 0.999) == 1
    assert draw(logits, SamplingParams(temperature=1e6), 0.999999) == 3
    infinite = torch.tensor([math.inf, 3.0, math.inf])
    assert {draw(infinite, SamplingParams(), u / 10) for u in range(10)} == {0, 2}
    assert draw(logits, SamplingParams(), 1 - 2**-53) == 3


def test_a_draw_depends_on_nothing_else_in_the_batch() -> None:
    logits = random_logits(9, 5000)
    kinds = [*DISTRIBUTIONS, GREEDY, SamplingParams(repetition_penalty=1.4, top_p=0.7)]
    options = LogprobOptions(num_top=4, token_ids=(3,))
    rows = [
        row(kinds[i % len(kinds)], seed=i, position=10 * i, prompt_ids=[1, 2], logprobs=options)
        for i in range(9)
    ]
    sampler = Sampler(5000)

    together = sampler.sample(logits, rows)
    alone = [sampler.sample(logits[i : i + 1], [rows[i]])[0] for i in range(9)]
    turned = sampler.sample(logits.flip(0), rows[::-1])[::-1]

    assert together == alone == turned


def test_seed_and_position_each_change_the_draw() -> None:
    places = {uniform(seed, position) for seed in range(-50, 50) for position in range(50)}

    assert len(places) == 100 * 50
    assert all(0.0 <= u < 1.0 for u in places)
    assert abs(sum(places) / len(places) - 0.5) < 0.02
    assert uniform(2**63 - 1, 5) != uniform(-(2**63), 5)


def test_neighbouring_seeds_and_positions_are_uncorrelated() -> None:
    grid = np.array([[uniform(seed, position) for position in range(60)] for seed in range(60)])

    for shifted, original in [
        (grid[1:], grid[:-1]),
        (grid[:, 1:], grid[:, :-1]),
        (grid[1:, :-1], grid[:-1, 1:]),
    ]:
        assert abs(np.corrcoef(shifted.ravel(), original.ravel())[0, 1]) < 0.08


def test_logprobs_are_of_the_raw_distribution() -> None:
    logits = random_logits(1, 64)
    reference = torch.log_softmax(logits[0].double(), -1)
    params = SamplingParams(
        temperature=0.3, top_k=3, repetition_penalty=1.5, logit_bias=((4, 9.0),)
    )
    options = LogprobOptions(num_top=5, token_ids=(9, 2, 9))

    drawn = Sampler(64).sample(logits, [row(params, prompt_ids=[1], logprobs=options)])[0]

    assert drawn.logprobs is not None and drawn.logprobs.token_id == drawn.token_id
    assert drawn.logprobs.logprob == pytest.approx(float(reference[drawn.token_id]), abs=1e-5)
    top = torch.topk(reference, 5)
    assert [i for _, i in drawn.logprobs.top or ()] == top.indices.tolist()
    assert [v for v, _ in drawn.logprobs.top or ()] == pytest.approx(top.values.tolist(), abs=1e-5)
    assert [i for _, i in drawn.logprobs.by_id or ()] == [9, 2, 9]
    assert (drawn.logprobs.by_id or ())[1][0] == pytest.approx(float(reference[2]), abs=1e-5)


def test_logprobs_not_asked_for_are_absent() -> None:
    logits = random_logits(1, 8)

    assert Sampler(8).sample(logits, [row()])[0].logprobs is None
    scored = Sampler(8).sample(logits, [row(logprobs=LogprobOptions())])[0].logprobs
    assert scored is not None and scored.top is None and scored.by_id is None


def test_scored_positions_equal_sampled_ones_bit_by_bit() -> None:
    logits = random_logits(150, 300)
    options = LogprobOptions(num_top=3)
    sampler = Sampler(300)
    drawn = sampler.sample(logits, [row(logprobs=options)] * 150)

    scored = sampler.score_positions(logits, [one.token_id for one in drawn], options)

    assert scored == [one.logprobs for one in drawn]
    assert sampler.score_positions(logits[:0], [], options) == []


def test_impossible_tokens_have_the_least_logprob_not_minus_infinity() -> None:
    logits = torch.tensor([[0.0, -math.inf], [math.inf, 0.0], [-math.inf, -math.inf]])

    scored = Sampler(2).score_positions(logits, [1, 0, 1], LogprobOptions(num_top=2))

    assert [one.logprob for one in scored] == [MIN_LOGPROB, 0.0, MIN_LOGPROB]
    assert scored[0].top == ((0.0, 0), (MIN_LOGPROB, 1))


@pytest.mark.parametrize("k", [1, 3, 10, 64, 100])
def test_top_candidates_equal_a_stable_sort(k: int) -> None:
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        values = torch.randint(0, 12, (64,), generator=generator).float()

        found, ids = top_candidates(values, k)

        order = np.argsort(-values.numpy(), kind="stable")[:k]
        assert ids.tolist() == order.tolist()
        assert found.tolist() == values[ids].tolist()
