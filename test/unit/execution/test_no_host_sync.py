"""A step on a GPU asks the device for nothing while it is launched.

Tensors without data stand in for a GPU's: whatever would read a value of theirs raises, and so does
a tensor on the wrong device.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from support.steps import batch_of_rows
from support.tiny_models import save_tiny_model
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    FakeTensor,
    FakeTensorMode,
)

from runtime.srt.attention.tensor_batch import TensorBatch
from runtime.srt.attention.triton_backend import TritonAttention
from runtime.srt.attention.triton_kernels import TritonKernels
from runtime.srt.execution.device_draw import DrawParams, greedy_ids
from runtime.srt.execution.device_sampler import DeviceSampler
from runtime.srt.execution.forward_batch import ForwardBatch, PromptLogprobRow, SampleRow
from runtime.srt.execution.logit_lists import TORCH_LOGIT_OPS
from runtime.srt.execution.packed_arrays import HostArray
from runtime.srt.execution.score_slices import slices_of_prompts
from runtime.srt.execution.token_relay import TokenRelay, TorchRelayOps
from runtime.srt.loading.model_config import ModelConfig
from runtime.srt.memory.kv_pool import KvPool
from runtime.srt.models.registry import build_model
from runtime.srt.sampling_params import LogprobOptions, SamplingParams

CUDA = torch.device("cuda")
# Nine decoding rows, of which some share a prefix, and two prompts.
LENS = [(1, 3000)] * 9 + [(7, 7), (5, 600)]


@pytest.fixture(autouse=True)
def index_without_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's own indexing makes the device current first, which a build for CPUs cannot."""

    def getitem(tensor: torch.Tensor, key: Any) -> torch.Tensor:
        keys = key if isinstance(key, tuple) else (key,)
        if any(isinstance(one, torch.Tensor) for one in keys):
            found: torch.Tensor = torch.ops.aten.index.Tensor(tensor, list(keys))
            return found
        dim = 0
        for one in keys:
            if isinstance(one, int):
                tensor = tensor.select(dim, one)
                continue
            start, stop, _ = one.indices(tensor.shape[dim])
            tensor = tensor.narrow(dim, start, stop - start)
            dim += 1
        return tensor

    monkeypatch.setattr(FakeTensor, "__getitem__", getitem, raising=False)


def _kernels() -> TritonKernels:
    """Kernels that do nothing but look at their tensors' device."""

    def kernel(*args: Any, **kwargs: Any) -> None:
        for one in (*args, *kwargs.values()):
            assert not isinstance(one, torch.Tensor) or one.device.type == "cuda"

    def groups(**tensors: torch.Tensor) -> dict[str, torch.Tensor]:
        kernel(**tensors)
        return tensors

    return TritonKernels(
        decode_attention=kernel,
        choose_num_splits=lambda *sizes: 4,
        workspace_floats=lambda rows, heads, states, dim: rows * heads * states * (dim + 1),
        extend_attention=kernel,
        shared_prefix_attention=kernel,
        prefix_groups=groups,
        store_kv=kernel,
    )


@pytest.fixture(params=["llama-gqa", "qwen3-biases", "qwen2-tied"])
def config(request: pytest.FixtureRequest, tmp_path: Path) -> ModelConfig:
    save_tiny_model(tmp_path, request.param)
    return ModelConfig.load(tmp_path, {})


def _on_gpu(arrays: Mapping[str, HostArray]) -> dict[str, torch.Tensor]:
    """Tensors like the arrays, without their values."""
    return {
        name: torch.empty(one.shape, dtype=torch.from_numpy(one).dtype, device=CUDA)
        for name, one in arrays.items()
    }


def _forward(config: ModelConfig, in_graph: bool) -> tuple[Any, torch.Tensor]:
    lens = [(1, 30)] * 8 if in_graph else LENS
    host = batch_of_rows(lens)
    host.slot_table[2:6, :2500] = host.slot_table[1, :2500]
    with CUDA:
        model = build_model(config, torch.bfloat16)
    attention = TritonAttention(
        config,
        _kernels(),
        _on_gpu,
        CUDA,
        num_multiprocessors=100,
        max_rows=16,
        max_context=4096,
        kv_bytes=100,
    )
    tensors = _on_gpu(
        {one.name: getattr(host, one.name) for one in dataclasses.fields(ForwardBatch)}
    )
    starts, table = tensors["cu_query_lens"], tensors["slot_table"]
    batch = TensorBatch.of_tensors(tensors, starts, table, None if in_graph else host)
    pool = KvPool(config, 64, torch.bfloat16, CUDA)
    return model, model.forward(batch, pool, attention)


@pytest.mark.parametrize("in_graph", [False, True])
def test_the_forward_pass_reads_nothing_back(config: ModelConfig, in_graph: bool) -> None:
    with FakeTensorMode(), torch.inference_mode():
        model, hidden = _forward(config, in_graph)
        logits = model.compute_logits(hidden)

    num_tokens = 8 if in_graph else sum(num_new for num_new, _ in LENS)
    assert (hidden.shape, hidden.dtype) == ((num_tokens, config.hidden_size), torch.bfloat16)
    assert (logits.shape, logits.dtype) == ((num_tokens, config.vocab_size), torch.float32)
    assert hidden.device.type == logits.device.type == "cuda"


def test_draws_and_scores_read_nothing_back() -> None:
    options = LogprobOptions(num_top=3, token_ids=(1, 5))
    params = [
        SamplingParams(temperature=0.0),
        SamplingParams(temperature=0.7, top_p=0.9, top_k=5, min_p=0.1, frequency_penalty=0.4),
        SamplingParams(temperature=1.0, repetition_penalty=1.2, logit_bias=((3, 1.0),)),
    ]
    rows = [SampleRow(i, one, 1, 9, [1, 2], [3], (4,)) for i, one in enumerate(params)]
    rows[1].logprobs = options
    rows[2].allowed_ids = torch.zeros(4, dtype=torch.int32).numpy().view("uint32")

    # The kernel that draws stands in as the arg-max; both take and give the same tensors.
    def draw(logits: torch.Tensor, params: DrawParams, rows: Any, floor: float = 0.0) -> Any:
        return greedy_ids(logits)

    sampler = DeviceSampler(128, draw, TORCH_LOGIT_OPS)
    plan = sampler.plan(rows)
    (scored,) = slices_of_prompts([PromptLogprobRow(0, 0, [1, 2, 3], options)], [0, 3])

    with FakeTensorMode(), torch.inference_mode():
        arrays = {**plan.arrays, **scored.arrays()}
        staged = _on_gpu(arrays)
        logits = torch.empty(3, 128, device=CUDA)
        tokens, results = sampler.enqueue(logits, plan, staged)
        results.update(scored.compute(logits, scored.staged(staged, "targets"), staged))
        relay = TokenRelay(9, CUDA, TorchRelayOps())
        table_rows = torch.empty(3, dtype=torch.int64, device=CUDA)
        relay.put(table_rows, tokens)
        relay.take(torch.empty(5, dtype=torch.int64, device=CUDA), table_rows, table_rows)

    assert {name: tuple(one.shape) for name, one in results.items()} == {
        "ids": (3,),
        "drawn_target_logprobs": (1,),
        "drawn_by_id": (2,),
        "drawn_top_logprobs": (1, 3),
        "drawn_top_ids": (1, 3),
        "scored0_target_logprobs": (3,),
        "scored0_by_id": (6,),
        "scored0_top_logprobs": (3, 3),
        "scored0_top_ids": (3, 3),
    }
    assert all(one.device.type == "cuda" for one in results.values())


def test_reading_a_value_back_would_be_found() -> None:
    with FakeTensorMode(), pytest.raises(DataDependentOutputException):
        torch.empty(1, device=CUDA).item()
