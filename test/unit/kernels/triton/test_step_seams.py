"""What a step calls between its matrix products, as kernels and as torch: the same results."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from runtime.kernels.triton import token_relay
from runtime.kernels.triton.grammar_mask import apply_bitmask
from runtime.kernels.triton.logit_edits import apply_edits
from runtime.srt.execution.device_sampler import DeviceSampler
from runtime.srt.execution.forward_batch import NAN_LOGITS, SampledToken, SampleRow
from runtime.srt.execution.logit_lists import LogitOps
from runtime.srt.execution.sampler import Sampler
from runtime.srt.execution.token_relay import TokenRelay
from runtime.srt.execution.triton_draw import load_triton_draw
from runtime.srt.layers.layer_ops import TorchLayerOps
from runtime.srt.layers.triton_layer_ops import TritonLayerOps
from runtime.srt.loading.model_config import RopeConfig
from runtime.srt.sampling_params import LogprobOptions, SamplingParams

CPU = torch.device("cpu")
VOCABULARY = 70  # not a multiple of 32
HEAD_DIM, EPS = 64, 1e-5


def test_device_sampler_with_kernels_draws_what_sampler_draws() -> None:
    mask = np.array([0, 0b1110, 1], dtype=np.uint32)  # ids 33, 34, 35, 64
    fields: list[dict[str, Any]] = [
        {"temperature": 0.7, "top_k": 5},
        {"temperature": 1.5, "top_p": 0.8, "frequency_penalty": 0.5, "logit_bias": ((7, 4.0),)},
        {"temperature": 0.0, "repetition_penalty": 1.8},
        {"temperature": 3.0, "allowed_ids": mask, "suppressed_ids": (34,)},
        {"temperature": 1.0, "min_p": 0.1},
        {"temperature": 1.0},
        {"temperature": 1.0, "allowed_ids": mask},
    ]
    rows = [_row(i, **one) for i, one in enumerate(fields)]
    logits = 3 * torch.randn(len(rows), VOCABULARY, generator=torch.Generator().manual_seed(5))
    logits[5, 3] = torch.nan
    logits[6, [33, 34, 35, 64]] = -torch.inf  # the model gives no mass to any legal id

    on_device = _sampled_with_kernels(logits, rows)

    on_host = Sampler(VOCABULARY).sample(logits, rows)
    assert [one.token_id for one in on_device] == [one.token_id for one in on_host]
    assert [one.error for one in on_device] == [None] * 5 + [NAN_LOGITS, None]
    for ours, theirs in zip(on_device, on_host, strict=True):
        if ours.error is None:
            assert ours.logprobs is not None and theirs.logprobs is not None
            assert ours.logprobs.logprob == pytest.approx(theirs.logprobs.logprob, abs=1e-4)


def test_layer_operations_are_those_of_torch() -> None:
    random = torch.Generator().manual_seed(3)
    x, residual = (torch.randn(5, 96, generator=random) for _ in range(2))
    weight, norm = (torch.randn(size, generator=random) for size in (96, HEAD_DIM))
    qkv = torch.randn(5, 8, HEAD_DIM, generator=random)
    positions = torch.tensor([0, 1, 17, 98, 99])
    rope = RopeConfig(theta=10000.0)
    found: list[list[torch.Tensor]] = []

    for ops in (
        TritonLayerOps(rope, HEAD_DIM, 100, CPU),
        TorchLayerOps(rope, HEAD_DIM, CPU),
    ):
        total = residual.clone()
        results = [
            ops.rms_norm(x, weight, EPS),
            ops.add_rms_norm(x, total, weight, EPS),
            total,
            ops.silu_and_mul(x),
        ]
        for one in (None, norm):
            qk = qkv.clone()[:, :6]
            results += ops.rotation(positions)(qk, 4, one, one, EPS)
        found.append(results)

    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=2e-5)


def test_tokens_go_from_step_to_step() -> None:
    relay = TokenRelay(4, CPU, token_relay)
    input_ids = torch.tensor([5, 5, 5, 5])

    relay.put(torch.tensor([3, 1]), torch.tensor([77, 88]))
    relay.take(input_ids, torch.tensor([0, 2]), torch.tensor([1, 3]))

    assert input_ids.tolist() == [88, 5, 77, 5]


def _row(index: int, **fields: Any) -> SampleRow:
    changes = {
        name: fields.pop(name) for name in ("suppressed_ids", "allowed_ids") if name in fields
    }
    return SampleRow(
        index,
        SamplingParams(**fields),
        11 + index,
        40,
        [1, 2, 3, 2],
        [3, 3, 9],
        logprobs=LogprobOptions(),
        **changes,
    )


def _sampled_with_kernels(logits: torch.Tensor, rows: list[SampleRow]) -> list[SampledToken]:
    sampler = DeviceSampler(VOCABULARY, load_triton_draw(), LogitOps(apply_bitmask, apply_edits))
    plan = sampler.plan(rows)
    staged = {name: torch.from_numpy(array) for name, array in plan.arrays.items()}
    _, results = sampler.enqueue(logits, plan, staged)
    return sampler.read(plan, {name: one.numpy() for name, one in results.items()})
