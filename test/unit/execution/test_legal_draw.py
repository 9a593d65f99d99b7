"""Draws among legal ids, held against numpy: odd sizes, empty words, ties, infinities, NaN."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from runtime.kernels.cpu.library import CpuModel, CpuModelConfig
from runtime.srt.execution.forward_batch import SampledToken, SampleRow
from runtime.srt.execution.native_sampler import NativeSampler
from runtime.srt.sampling_params import SamplingParams

GREEDY = SamplingParams(temperature=0.0)
DRAWN = SamplingParams(temperature=0.8, top_p=0.95)
SIZES = (31, 33, 100, 4_999)


def _draw(
    logits: npt.NDArray[np.float32], legal: npt.NDArray[np.bool_], params: SamplingParams
) -> SampledToken:
    """Bits past the last id are set, which must not matter."""
    size = len(logits)
    padded = np.concatenate([legal, np.ones(-size % 32, dtype=bool)])
    words = np.packbits(padded, bitorder="little").view(np.uint32)
    config = CpuModelConfig(
        num_layers=1,
        hidden_size=64,
        intermediate_size=64,
        num_heads=1,
        num_kv_heads=1,
        head_dim=64,
        vocab_size=size,
        max_positions=64,
        rms_eps=1e-5,
        tied_embeddings=True,
        num_threads=1,
    )
    row = SampleRow(0, params, 3, 5, (), (), allowed_ids=words)
    return NativeSampler(CpuModel(config)).sample(logits.reshape(1, -1), [row])[0]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("share", [0.01, 0.5, 1.0])
def test_greedy_takes_the_first_of_the_likeliest_legal_ids(size: int, share: float) -> None:
    draws = np.random.default_rng(size)
    logits = np.round(draws.standard_normal(size), 1).astype(np.float32)  # many ties
    legal = draws.random(size) < share
    legal[size - 1] = True

    found = _draw(logits, legal, GREEDY)

    ids = np.flatnonzero(legal)
    assert found.error is None
    assert found.token_id == ids[np.argmax(logits[ids])]


@pytest.mark.parametrize("size", SIZES)
def test_a_draw_is_of_a_legal_id(size: int) -> None:
    draws = np.random.default_rng(size)
    legal = np.zeros(size, dtype=bool)
    legal[[0, size // 2, size - 1]] = True

    found = _draw(draws.standard_normal(size).astype(np.float32), legal, DRAWN)

    assert legal[found.token_id]


def test_nan_matters_only_among_legal_ids() -> None:
    logits = np.zeros(100, dtype=np.float32)
    logits[40], logits[41] = np.nan, 2.0
    legal = np.ones(100, dtype=bool)

    with_nan = _draw(logits, legal, GREEDY)
    legal[40] = False
    without = _draw(logits, legal, GREEDY)

    assert with_nan.error is not None
    assert without.token_id == 41


def test_where_no_legal_id_is_possible_the_first_is_taken() -> None:
    logits = np.full(100, -np.inf, dtype=np.float32)
    legal = np.arange(100) >= 70

    assert _draw(logits, legal, GREEDY).token_id == 70
