"""The engine's sampler beside the torch one and float64: one meaning, the same tokens per seed."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from support.cpu_rig import tiny_config
from support.sampling_reference import probabilities

from runtime.kernels.cpu.abi_types import Level, load_library
from runtime.kernels.cpu.build import library_path
from runtime.kernels.cpu.library import CpuModel, EngineError
from runtime.srt.execution.forward_batch import PromptLogprobRow, SampledToken, SampleRow
from runtime.srt.execution.logprobs import MIN_LOGPROB
from runtime.srt.execution.native_sampler import NativeSampler
from runtime.srt.execution.sampler import Sampler
from runtime.srt.messages import PositionLogprobs
from runtime.srt.sampling_params import (
    MAX_COUNT,
    MAX_SEED,
    LogprobOptions,
    SamplingParams,
    checked,
)

GREEDY = SamplingParams(temperature=0.0)
BEST_LEVEL = load_library(library_path()).rt_best_level()
LEVELS = [level for level in Level if 0 <= level <= BEST_LEVEL]
Floats = npt.NDArray[np.float32]


def native(vocab_size: int, threads: int = 2, level: Level = Level.AUTO) -> NativeSampler:
    config = tiny_config(vocab_size=vocab_size, num_threads=threads, level=level)
    return NativeSampler(CpuModel(config))


def random_logits(num_rows: int, vocab_size: int, seed: int = 0, spread: float = 3.0) -> Floats:
    normal = np.random.default_rng(seed).standard_normal((num_rows, vocab_size))
    return (normal * spread).astype(np.float32)


def row(params: SamplingParams = GREEDY, **fields: Any) -> SampleRow:
    defaults = {"batch_row": 0, "seed": 0, "position": 0, "prompt_ids": [], "output_ids": []}
    return SampleRow(params=params, **{**defaults, **fields})


def scored(
    vocab_size: int, logits: Floats, targets: list[int], options: LogprobOptions
) -> list[PositionLogprobs]:
    (found,) = native(vocab_size).score(logits, [PromptLogprobRow(0, 0, targets, options)])
    return found


def bitmask(allowed: npt.NDArray[np.bool_]) -> npt.NDArray[np.uint32]:
    padded = np.zeros(-(-len(allowed) // 32) * 32, dtype=np.bool_)
    padded[: len(allowed)] = allowed
    return np.packbits(padded, bitorder="little").view(np.uint32)


def random_row(rng: np.random.Generator, vocab_size: int) -> SampleRow:
    def maybe(value: Any, otherwise: Any, chance: float = 0.5) -> Any:
        return value if rng.random() < chance else otherwise

    def some_ids(most: int) -> list[int]:
        ids: list[int] = rng.integers(0, vocab_size, rng.integers(0, most)).tolist()
        return ids

    bias = tuple((i, float(rng.uniform(-5, 5))) for i in some_ids(6))
    params = SamplingParams(
        temperature=float(maybe(rng.uniform(0.2, 2.5), 0.0, 0.8)),
        top_k=maybe(int(rng.integers(1, vocab_size + 5)), maybe(20, None)),
        top_p=float(maybe(rng.uniform(0.05, 1.0), 1.0)),
        min_p=float(maybe(rng.uniform(0.0, 0.3), 0.0, 0.3)),
        repetition_penalty=float(maybe(rng.uniform(0.5, 1.8), 1.0, 0.4)),
        frequency_penalty=float(maybe(rng.uniform(-1, 1), 0.0, 0.4)),
        presence_penalty=float(maybe(rng.uniform(-1, 1), 0.0, 0.4)),
        logit_bias=maybe(bias, (), 0.3),
    )
    density = float(rng.choice([0.002, 0.1, 0.9]))
    allowed = rng.random(vocab_size) < density
    allowed[rng.integers(0, vocab_size)] = True
    return row(
        params,
        seed=int(rng.integers(-(2**62), 2**62)),
        position=int(rng.integers(0, 10_000)),
        prompt_ids=np.array(some_ids(40), dtype=np.int32),
        output_ids=some_ids(40),
        suppressed_ids=maybe(tuple(some_ids(4)), (), 0.2),
        allowed_ids=maybe(bitmask(allowed), None, 0.3),
        logprobs=maybe(LogprobOptions(num_top=5, token_ids=(1, 3)), None, 0.3),
    )


@pytest.mark.parametrize("level", LEVELS, ids=lambda level: level.name)
@pytest.mark.parametrize("vocab_size", [7, 203, 5000])
def test_tokens_and_logprobs_equal_the_torch_sampler(vocab_size: int, level: Level) -> None:
    num_rows = 120
    rng = np.random.default_rng(vocab_size)
    rows = [random_row(rng, vocab_size) for _ in range(num_rows)]
    logits = random_logits(num_rows, vocab_size, seed=1, spread=2.0)

    ours = native(vocab_size, level=level).sample(logits, rows)
    theirs = Sampler(vocab_size).sample(torch.from_numpy(logits), rows)

    # A draw next to the border between two tokens may fall on either side: rounding moves borders
    # by about 1e-6 of the mass.
    different = [i for i in range(num_rows) if ours[i].token_id != theirs[i].token_id]
    assert len(different) <= 1
    for i in set(range(num_rows)) - set(different):
        assert (ours[i].logprobs is None) == (theirs[i].logprobs is None)
        if ours[i].logprobs is not None:
            assert_close(ours[i].logprobs, theirs[i].logprobs)


def assert_close(ours: PositionLogprobs | None, theirs: PositionLogprobs | None) -> None:
    assert ours is not None and theirs is not None
    assert ours.token_id == theirs.token_id
    assert ours.logprob == pytest.approx(theirs.logprob, abs=2e-5)
    for our_pairs, their_pairs in ((ours.top, theirs.top), (ours.by_id, theirs.by_id)):
        assert (our_pairs is None) == (their_pairs is None)
        if our_pairs is not None and their_pairs is not None:
            assert [i for _, i in our_pairs] == [i for _, i in their_pairs]
            expected = [value for value, _ in their_pairs]
            assert [value for value, _ in our_pairs] == pytest.approx(expected, abs=2e-5)


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(),
        SamplingParams(temperature=0.6),
        SamplingParams(temperature=2.5, top_k=7),
        SamplingParams(top_p=0.8),
        SamplingParams(temperature=30.0, top_p=0.9),
        SamplingParams(min_p=0.15),
        SamplingParams(temperature=1.3, top_k=200, top_p=0.9, min_p=0.02),
        SamplingParams(temperature=9.0, top_k=300),
    ],
)
def test_draws_follow_the_float64_distribution(params: SamplingParams) -> None:
    vocab_size, num_draws = 400, 6000
    logits = np.broadcast_to(random_logits(1, vocab_size, seed=5), (num_draws, vocab_size)).copy()
    expected = probabilities(logits[0], params)

    rows = [row(params, seed=9, position=i) for i in range(num_draws)]
    drawn = [one.token_id for one in native(vocab_size).sample(logits, rows)]

    counts = np.bincount(drawn, minlength=vocab_size)
    assert counts[expected == 0].sum() == 0
    likely = expected > 5 / num_draws  # the others together are one more cell
    observed = np.append(counts[likely], counts[~likely].sum())
    wanted = num_draws * np.append(expected[likely], expected[~likely].sum())
    observed, wanted = observed[wanted > 0], wanted[wanted > 0]
    freedom = len(wanted) - 1
    # Five standard deviations above the mean of the chi-square distribution.
    chi_square = ((observed - wanted) ** 2 / wanted).sum()
    assert chi_square < freedom + 5 * math.sqrt(2 * freedom) + 1e-9


def test_results_are_the_same_bits_in_any_company_and_with_any_threads() -> None:
    vocab_size, num_rows = 3001, 37
    rng = np.random.default_rng(3)
    rows = [random_row(rng, vocab_size) for _ in range(num_rows)]
    logits = random_logits(num_rows, vocab_size, seed=4)
    before = logits.copy()

    together = native(vocab_size, threads=2).sample(logits, rows)
    one_thread = native(vocab_size, threads=1).sample(logits, rows)
    turned = native(vocab_size).sample(logits[::-1].copy(), rows[::-1])[::-1]
    sampler = native(vocab_size)
    alone = [sampler.sample(logits[i : i + 1], [rows[i]])[0] for i in range(num_rows)]

    assert together == one_thread == turned == alone
    assert (logits == before).all()


def test_only_legal_tokens_are_drawn_and_logprobs_stay_those_of_the_raw_row() -> None:
    vocab_size = 1000
    logits = random_logits(1, vocab_size)
    allowed = np.zeros(vocab_size, dtype=np.bool_)
    allowed[[3, 500, 999]] = True
    options = LogprobOptions(num_top=3)

    def run(params: SamplingParams, position: int, **fields: Any) -> SampledToken:
        one = row(params, position=position, allowed_ids=bitmask(allowed), **fields)
        return native_1000.sample(logits, [one])[0]

    native_1000 = native(vocab_size)
    legal = [3, 500, 999]

    assert run(GREEDY, 0).token_id == legal[int(logits[0, legal].argmax())]
    drawn = {run(SamplingParams(temperature=5.0), i).token_id for i in range(100)}
    assert drawn == set(legal)
    scored = run(GREEDY, 0, logprobs=options).logprobs
    raw = torch.log_softmax(torch.from_numpy(logits[0]), 0)
    assert scored is not None and scored.top is not None
    assert scored.logprob == pytest.approx(float(raw[scored.token_id]), abs=2e-5)
    assert [i for _, i in scored.top] == raw.topk(3).indices.tolist()


def test_impossible_rows_still_give_a_legal_token() -> None:
    logits = np.full((1, 70), -math.inf, dtype=np.float32)
    sampler = native(70)
    allowed = np.ones(70, dtype=np.bool_)
    allowed[:33] = False

    assert sampler.sample(logits, [row(suppressed_ids=(0, 1))])[0].token_id == 2
    one = row(SamplingParams(), suppressed_ids=(33,), allowed_ids=bitmask(allowed))
    assert sampler.sample(logits, [one])[0].token_id == 34


def test_a_nan_fails_its_own_row_only() -> None:
    logits = random_logits(4, 50)
    logits[1, 7] = logits[2, 49] = math.nan

    drawn = native(50).sample(logits, [row(), row(), row(SamplingParams()), row(SamplingParams())])

    assert [one.error is None for one in drawn] == [True, False, False, True]
    assert "NaN" in str(drawn[1].error)


def test_extreme_temperatures_and_infinite_logits_draw_something_sane() -> None:
    def drawn(values: list[float], params: SamplingParams) -> set[int]:
        logits = np.array([values] * 60, dtype=np.float32)
        rows = [row(params, position=i) for i in range(60)]
        return {one.token_id for one in native(len(values)).sample(logits, rows)}

    assert drawn([1.0, 3.0, -math.inf, 2.9], SamplingParams(temperature=2e-6)) == {1}
    assert drawn([1.0, 3.0, -math.inf, 2.9], SamplingParams(temperature=1e6)) == {0, 1, 3}
    for params in (
        SamplingParams(),
        SamplingParams(top_p=0.99),
        SamplingParams(top_k=3),
        SamplingParams(min_p=0.5),
    ):
        assert drawn([math.inf, 3.0, math.inf, 1.0], params) == {0, 2}


def test_top_k_keeps_exactly_k_and_the_lowest_ids_on_ties() -> None:
    logits = np.zeros((100, 500), dtype=np.float32)
    logits[:, 100:400] = 1.0
    rows = [row(SamplingParams(top_k=3), position=i) for i in range(100)]

    drawn = {one.token_id for one in native(500).sample(logits, rows)}

    assert drawn == {100, 101, 102}


def test_positions_are_scored_as_by_torch() -> None:
    vocab_size = 777
    logits = random_logits(9, vocab_size, seed=8)
    logits[1, 5] = math.inf
    logits[2] = -math.inf
    logits[3, 700] = math.nan
    targets = np.random.default_rng(0).integers(0, vocab_size, 9).tolist()
    options = LogprobOptions(prompt_start=0, num_top=20, token_ids=(0, 5, 776))

    ours = scored(vocab_size, logits, targets, options)
    theirs = Sampler(vocab_size).score_positions(torch.from_numpy(logits), targets, options)

    for one, other in zip(ours, theirs, strict=True):
        assert_close(one, other)
    assert ours[2].logprob == MIN_LOGPROB


def test_more_top_logprobs_than_tokens_are_all_tokens() -> None:
    logits = random_logits(1, 7)

    (found,) = scored(7, logits, [2], LogprobOptions(num_top=50))

    assert found.top is not None
    assert [i for _, i in found.top] == np.argsort(-logits[0], kind="stable").tolist()


def test_ids_outside_the_vocabulary_are_refused() -> None:
    logits = random_logits(1, 50)

    with pytest.raises(EngineError, match="biased id 50 is outside"):
        native(50).sample(logits, [row(SamplingParams(logit_bias=((50, 1.0),)))])
    with pytest.raises(EngineError, match="suppressed id -1"):
        native(50).sample(logits, [row(suppressed_ids=(-1,))])


EXTREMES: dict[str, tuple[Any, ...]] = {
    "temperature": (0.0, 1e-6, 1e6),
    "top_k": (1, MAX_COUNT),
    "top_p": (1e-300, 1.0),
    "min_p": (0.0, 1.0),
    "frequency_penalty": (-2.0, 2.0),
    "presence_penalty": (-2.0, 2.0),
    "repetition_penalty": (1e-300, 2.0),
    "logit_bias": (((0, -100.0), (299, 100.0)),),
    "sampling_seed": (-MAX_SEED - 1, MAX_SEED),
}


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in EXTREMES.items() for value in values]
)
def test_what_the_edge_lets_through_the_sampler_takes(name: str, value: Any) -> None:
    params = checked(SamplingParams(**{"temperature": 1.0, name: value}), 300)
    logits = random_logits(2, 300)
    seed = params.sampling_seed or 0
    rows = [
        row(params, batch_row=i, seed=seed, prompt_ids=[1, 2], output_ids=[3], position=2**31 - 1)
        for i in range(2)
    ]

    for sampled in native(300).sample(logits, rows):
        assert sampled.error is None
        assert 0 <= sampled.token_id < 300
