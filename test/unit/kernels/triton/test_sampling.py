"""Drawing tokens without sorting, against draws by definition in float64, interpreted."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from support.guarded_tensors import guarded, same_bits
from support.sampling_reference import probabilities

from runtime.kernels.triton.sampling import SamplingTensors, sample
from runtime.srt.execution.draw import draw, uniform
from runtime.srt.sampling_params import SamplingParams

DTYPES = [torch.float32, torch.float16]
# Temperature, top_k, top_p, min_p.
PARAMS = [
    SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    for temperature, top_k, top_p, min_p in (
        (2.5, 40, 0.875, 0.0625),
        (1.0, None, 0.875, 0.0),
        (1.5, None, 1.0, 0.0),
        (0.3, 2, 1.0, 0.0),
        (2.5, None, 1.0, 0.0625),
        (1.0, None, 0.25, 0.0),
        (2.5, 40, 1.0, 0.0625),
        (2.0, 2, 0.875, 0.0),
    )
]


# The vocabulary is less than a tile, one tile, and some tiles. In f16 many logits are equal. A pass
# of the interpreter over a tile takes milliseconds, so the larger ones get fewer rows.
@pytest.mark.parametrize(
    ("vocab_size", "dtype", "num_rows"),
    [
        (50, torch.float32, 8),
        (4096, torch.float16, 4),
        (9000, torch.float32, 3),
    ],
)
def test_draws_are_those_of_the_definition(
    vocab_size: int, dtype: torch.dtype, num_rows: int
) -> None:
    rows = PARAMS[:num_rows]
    logits = guarded(_random_logits(num_rows, vocab_size, seed=vocab_size).to(dtype))
    positions = [7 + 3 * i for i in range(num_rows)]

    drawn = sample(logits, _tensors(rows, vocab_size, positions=positions))

    for i, (params, position) in enumerate(zip(rows, positions, strict=True)):
        u = uniform(SEED, position)
        values = logits[i].float()
        assert int(drawn.ids[i]) == _drawn_by_definition(values, params, u), params
        assert int(drawn.ids[i]) == draw(values, params, u), params
    assert not drawn.has_nan.any()


@pytest.mark.parametrize("seed", [0, 1, -1, 2**63 - 1, -(2**63)])
def test_the_random_number_is_the_same_hash_as_on_the_host(seed: int) -> None:
    positions = [0, 4095, 2**40]
    # All tokens are alike: the id is the random number in units of 1 / V.
    vocab_size = 4096
    params = _tensors([SamplingParams()] * len(positions), vocab_size, seed, positions)

    drawn = sample(torch.zeros(len(positions), vocab_size), params)

    assert drawn.ids.tolist() == [int(uniform(seed, one) * vocab_size) for one in positions]


def test_among_equal_logits_lower_ids_are_kept_and_each_has_its_share() -> None:
    logits = torch.zeros(3, 5000)
    logits[:, 4500:] = 1.0
    logits[:, 10] = 1.0
    kept = [10, 4500, 4501, 4502, 4503]
    rows = [SamplingParams(top_k=5)] * 3

    drawn = sample(logits, _tensors(rows, 5000))

    assert drawn.ids.tolist() == [kept[int(5 * uniform(SEED, i))] for i in range(3)]


def test_top_p_keeps_as_many_equal_tokens_as_it_needs() -> None:
    # Each of 8 tokens has an eighth: three of them reach 0.3.
    rows = [SamplingParams(top_p=0.3)] * 4
    logits = torch.full((4, 20), -math.inf)
    logits[:, 5:13] = 2.0

    drawn = sample(logits, _tensors(rows, 20))

    assert drawn.ids.tolist() == [5 + int(3 * uniform(SEED, i)) for i in range(4)]


def test_top_k_and_top_p_that_end_among_the_same_equals_keep_the_fewer() -> None:
    # Of ten equal tokens top_k leaves four, of which top_p 0.5 keeps two.
    rows = [SamplingParams(top_k=4, top_p=0.5)] * 3

    drawn = sample(torch.ones(3, 10), _tensors(rows, 10))

    assert drawn.ids.tolist() == [int(2 * uniform(SEED, i)) for i in range(3)]


@pytest.mark.parametrize("dtype", DTYPES)
def test_temperature_zero_takes_the_lowest_of_the_largest(dtype: torch.dtype) -> None:
    logits = torch.zeros(3, 9000, dtype=dtype)
    logits[0, [77, 8999]] = 2.0
    logits[1] = -math.inf
    logits[2, 4097] = math.inf
    rows = [SamplingParams(temperature=0.0)] * 3

    assert sample(logits, _tensors(rows, 9000)).ids.tolist() == [77, 0, 4097]


def test_a_nan_is_flagged_and_other_rows_are_drawn_as_if_alone() -> None:
    logits = _random_logits(4, 300, seed=1)
    rows = [SamplingParams(temperature=0.0), SamplingParams(top_p=0.9)] * 2
    clean = sample(logits, _tensors(rows, 300))
    logits[0, 299] = math.nan
    logits[3, 0] = math.nan

    drawn = sample(logits, _tensors(rows, 300))

    assert drawn.has_nan.tolist() == [True, False, False, True]
    assert drawn.ids[1:3].tolist() == clean.ids[1:3].tolist()


def test_a_draw_does_not_depend_on_the_other_rows() -> None:
    logits = _random_logits(3, 300, seed=2)
    rows = [SamplingParams(top_k=20), SamplingParams(), SamplingParams(temperature=0.0)]
    positions = [5, 6, 7]
    together = sample(logits, _tensors(rows, 300, positions=positions)).ids

    for i in range(3):
        alone = sample(logits[i : i + 1], _tensors(rows[i : i + 1], 300, positions=[5 + i]))
        assert alone.ids.tolist() == together[i : i + 1].tolist()


def test_rows_without_a_finite_logit_and_with_infinite_ones() -> None:
    logits = torch.full((3, 100), -math.inf)
    logits[1, [4, 90]] = math.inf
    logits[2] = 1.0
    logits[2, 60] = math.inf
    rows = [SamplingParams(), SamplingParams(top_k=50), SamplingParams(top_p=0.5)]

    drawn = sample(logits, _tensors(rows, 100), with_logprobs=True)

    assert drawn.logprobs is not None
    assert drawn.ids.tolist() == [0, [4, 90][int(2 * uniform(SEED, 1))], 60]
    assert drawn.logprobs.tolist() == pytest.approx([-math.inf, -math.log(2), 0.0])


@pytest.mark.parametrize("dtype", DTYPES)
def test_logprobs_are_of_the_logits_as_they_are(dtype: torch.dtype) -> None:
    logits = guarded(_random_logits(2, 5000, seed=3).to(dtype))
    rows = [
        SamplingParams(temperature=0.0),
        SamplingParams(temperature=2.0),
    ]

    drawn = sample(logits, _tensors(rows, 5000), with_logprobs=True)

    expected = torch.log_softmax(logits.double(), -1).gather(1, drawn.ids[:, None])[:, 0]
    assert drawn.logprobs is not None
    torch.testing.assert_close(drawn.logprobs.double(), expected, rtol=1e-6, atol=1e-5)


def test_rows_may_lie_apart_and_are_not_changed() -> None:
    matrix = _random_logits(1, 3000, seed=4)
    before = matrix.clone()
    rows = [SamplingParams(top_k=30)]

    apart = sample(matrix[:, 500:900], _tensors(rows, 400))
    close = sample(matrix[:, 500:900].contiguous(), _tensors(rows, 400))

    assert apart.ids.tolist() == close.ids.tolist()
    assert same_bits(matrix, before)


def test_rows_with_no_logit_above_the_floor_take_their_lowest_best_id() -> None:
    floor = -100.0
    logits = torch.full((3, 50), -math.inf)
    logits[:2, [7, 30]] = floor
    logits[1, 40] = floor + 1
    rows = [SamplingParams(temperature=5.0, top_p=0.9)] * 3

    drawn = sample(logits, _tensors(rows, 50), floor=floor)

    assert drawn.ids[[0, 2]].tolist() == [7, 0]
    assert int(drawn.ids[1]) == _drawn_by_definition(logits[1], rows[1], uniform(SEED, 1))


def test_a_vocabulary_of_one_token_gives_it() -> None:
    rows = [SamplingParams(), SamplingParams(top_p=0.1), SamplingParams(temperature=0.0)]

    assert sample(torch.zeros(3, 1), _tensors(rows, 1)).ids.tolist() == [0, 0, 0]


def test_no_rows_give_no_tokens() -> None:
    assert sample(torch.empty(0, 100), _tensors([], 100)).ids.tolist() == []


def test_a_vocabulary_too_large_and_a_parameter_of_another_type_are_refused() -> None:
    tensors = _tensors([SamplingParams()], 100)

    with pytest.raises(ValueError, match="2000000 tokens are not supported"):
        sample(torch.empty(1, 2_000_000), tensors)
    with pytest.raises(AssertionError, match="top_k is torch.int64"):
        sample(torch.empty(1, 100), replace(tensors, top_k=tensors.top_k.long()))


SEED = 1234


def _tensors(
    rows: list[SamplingParams],
    vocab_size: int,
    seed: int = SEED,
    positions: list[int] | None = None,
) -> SamplingTensors:
    if positions is None:
        positions = list(range(len(rows)))
    f32 = torch.float32
    return SamplingTensors(
        temperature=guarded(torch.tensor([row.temperature for row in rows], dtype=f32)),
        top_k=guarded(torch.tensor([row.top_k or vocab_size for row in rows], dtype=torch.int32)),
        top_p=guarded(torch.tensor([row.top_p for row in rows], dtype=f32)),
        min_p=guarded(torch.tensor([row.min_p for row in rows], dtype=f32)),
        seed=guarded(torch.tensor([seed] * len(rows), dtype=torch.int64)),
        position=guarded(torch.tensor(positions, dtype=torch.int64)),
    )


def _random_logits(num_rows: int, vocab_size: int, seed: int) -> torch.Tensor:
    random = torch.Generator().manual_seed(seed)
    return 4 * torch.randn(num_rows, vocab_size, generator=random)


def _drawn_by_definition(logits: torch.Tensor, params: SamplingParams, u: float) -> int:
    p = probabilities(logits.numpy(), params)
    is_cut = params.top_k is not None or params.top_p < 1
    order = np.argsort(-p, kind="stable") if is_cut else np.arange(len(p))
    return int(order[np.searchsorted(np.cumsum(p[order]), u, side="right")])
