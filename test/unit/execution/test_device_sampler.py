"""Draws and scores on a device are those of Sampler, row by row."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import pytest
import torch

from runtime.srt.execution.device_draw import reference_draw
from runtime.srt.execution.device_sampler import DeviceSampler
from runtime.srt.execution.forward_batch import SampledToken, SampleRow
from runtime.srt.execution.logit_changes import changed_logits
from runtime.srt.execution.logit_lists import TORCH_LOGIT_OPS, change_lists
from runtime.srt.execution.logit_lists import changed_logits as changed_on_device
from runtime.srt.execution.sampler import Sampler
from runtime.srt.sampling_params import LogprobOptions, SamplingParams

VOCABULARY = 70  # not a multiple of 32
DEVICE_SAMPLER = DeviceSampler(VOCABULARY, reference_draw, TORCH_LOGIT_OPS)


def _row(index: int, **fields: Any) -> SampleRow:
    row: dict[str, Any] = {
        name: fields.pop(name)
        for name in ("suppressed_ids", "allowed_ids", "logprobs", "output_ids")
        if name in fields
    }
    row.setdefault("output_ids", [3, 3, 9])
    return SampleRow(index, SamplingParams(**fields), 11 + index, 40, [1, 2, 3, 2], **row)


def _mask(ids: list[int]) -> np.ndarray[Any, Any]:
    mask = np.zeros(-(-VOCABULARY // 32), dtype=np.uint32)
    for one in ids:
        mask[one // 32] |= np.uint32(1 << one % 32)
    return mask


def _sample(logits: torch.Tensor, rows: list[SampleRow]) -> list[SampledToken]:
    plan = DEVICE_SAMPLER.plan(rows)
    staged = {name: torch.from_numpy(array) for name, array in plan.arrays.items()}
    tokens, results = DEVICE_SAMPLER.enqueue(logits, plan, staged)
    sampled = DEVICE_SAMPLER.read(plan, {name: one.numpy() for name, one in results.items()})
    assert tokens.tolist() == [one.token_id for one in sampled], "what the relay gets"
    return sampled


ROWS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 1.0},
    {"temperature": 0.7, "top_k": 5},
    {"temperature": 1.5, "top_p": 0.8, "min_p": 0.1},
    {"temperature": 1.0, "frequency_penalty": 0.5, "presence_penalty": -0.5},
    {"temperature": 0.0, "repetition_penalty": 1.8},
    {"temperature": 0.0, "logit_bias": ((7, 9.0), (7, 1.5), (8, -3.0))},
    {"temperature": 0.0, "suppressed_ids": (1, 5, 9)},
    {"temperature": 1.0, "allowed_ids": _mask([4, 33, 69])},
    {"temperature": 0.0, "allowed_ids": _mask([65]), "repetition_penalty": 0.5},
    {"temperature": 1.0, "presence_penalty": 1.0, "output_ids": []},
    {"temperature": 1.0, "logprobs": LogprobOptions()},
    {"temperature": 0.0, "logprobs": LogprobOptions(num_top=4, token_ids=(3, 60))},
    {"temperature": 0.0, "logprobs": LogprobOptions(num_top=100)},
]


@pytest.mark.parametrize("seed", range(10))
def test_each_row_is_drawn_as_sampler_draws_it(seed: int) -> None:
    rng = random.Random(seed)
    fields = rng.sample(ROWS, k=rng.randint(1, len(ROWS)))
    rows = [_row(i, **one) for i, one in enumerate(fields)]
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(len(rows), VOCABULARY, generator=generator)
    logits[:, rng.randrange(VOCABULARY)] = logits[:, rng.randrange(VOCABULARY)]  # ties

    assert _sample(logits, rows) == Sampler(VOCABULARY).sample(logits, rows)


@pytest.mark.parametrize("fields", ROWS)
def test_rows_of_special_logits_are_drawn_as_sampler_draws_them(fields: dict[str, Any]) -> None:
    logits = torch.zeros(5, VOCABULARY)
    logits[0, 5] = math.nan
    logits[1] = -math.inf
    logits[2, [4, 65]] = math.inf
    logits[3, :40] = -math.inf
    rows = [_row(i, **fields) for i in range(5)]

    assert _sample(logits, rows) == Sampler(VOCABULARY).sample(logits, rows)


def test_a_row_of_nan_fails_alone() -> None:
    logits = torch.zeros(2, VOCABULARY)
    logits[0, 0] = math.nan

    failed, drawn = _sample(logits, [_row(0, temperature=0.0), _row(1, temperature=0.0)])

    assert failed.error is not None and drawn.error is None


@pytest.mark.parametrize("fields", ROWS)
def test_changed_logits_have_the_bits_of_the_reference(fields: dict[str, Any]) -> None:
    row = _row(0, **fields)
    logits = torch.randn(2, VOCABULARY, generator=torch.Generator().manual_seed(1))
    rows = [_row(1, temperature=0.0, logit_bias=((0, 1.0),)), row]
    staged = {name: torch.from_numpy(a) for name, a in change_lists(rows, VOCABULARY).items()}

    changed = changed_on_device(logits, staged, TORCH_LOGIT_OPS)

    assert torch.equal(changed[1], changed_logits(logits[1], row))


def test_rows_that_change_nothing_send_nothing_to_the_device() -> None:
    assert DEVICE_SAMPLER.plan([_row(0, temperature=0.0)]).arrays == {}
