"""The backends for GPUs route every row to a kernel that gives it the reference's result."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from support.fake_flashinfer import FakeFlashInfer
from support.steps import batch_of_rows
from support.tiny_models import save_tiny_model
from support.torch_kernels import TorchKernels

from runtime.srt.attention.backend import AttentionBackend
from runtime.srt.attention.flashinfer_backend import FlashInferAttention, unsupported_reason
from runtime.srt.attention.graph_attention import StepForm
from runtime.srt.attention.tensor_batch import TensorBatch
from runtime.srt.attention.torch_reference import TorchReferenceAttention
from runtime.srt.attention.triton_backend import TritonAttention
from runtime.srt.attention.triton_kernels import TritonKernels, load_triton_kernels
from runtime.srt.execution.forward_batch import ForwardBatch
from runtime.srt.execution.packed_arrays import HostArray
from runtime.srt.loading.model_config import ModelConfig
from runtime.srt.memory.kv_pool import KvPool

CPU = torch.device("cpu")
MAX_ROWS, MAX_CONTEXT = 12, 6000


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> ModelConfig:
    folder = tmp_path_factory.mktemp("tiny")
    save_tiny_model(folder, "llama-gqa")
    return ModelConfig.load(folder, {})


def _upload(arrays: Mapping[str, HostArray]) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(one.copy()) for name, one in arrays.items()}


def _triton(config: ModelConfig, kernels: TorchKernels, **options: Any) -> TritonAttention:
    options = {"kv_bytes": 1000, **options}
    return TritonAttention(
        config,
        kernels.kernels(),
        _upload,
        CPU,
        num_multiprocessors=8,
        max_rows=MAX_ROWS,
        max_context=MAX_CONTEXT,
        **options,
    )


def _flashinfer(
    config: ModelConfig, package: FakeFlashInfer, **options: Any
) -> FlashInferAttention:
    def store_kv(k: Any, v: Any, k_pool: Any, v_pool: Any, slots: Any) -> None:
        TorchKernels().store_kv(k, v, k_pool, v_pool, slots)

    options = {"kv_bytes": 1000, **options}
    return FlashInferAttention(
        config,
        package,
        store_kv,
        _upload,
        package.point,
        CPU,
        torch.float32,
        num_multiprocessors=8,
        max_context=MAX_CONTEXT,
        **options,
    )


def _attend(
    config: ModelConfig, attention: AttentionBackend, host: ForwardBatch, *, seed: int = 0
) -> torch.Tensor:
    """Attention of random queries over a random pool, in both layers; q, k, v views of one."""
    generator = torch.Generator().manual_seed(seed)
    pool = KvPool(config, int(host.slot_table.max()) + 1, torch.float32, CPU)
    pool.k.copy_(torch.randn(pool.k.shape, generator=generator))
    pool.v.copy_(torch.randn(pool.v.shape, generator=generator))
    heads = (config.num_heads, config.num_kv_heads, config.num_kv_heads)
    qkv = torch.randn(host.num_tokens, sum(heads), config.head_dim, generator=generator)
    batch = TensorBatch.of(host, CPU)
    attention.prepare(batch)
    out = [attention.forward(*qkv.split(heads, 1), layer, pool, batch) for layer in (0, 1)]
    assert (pool.k[1][host.out_slots] == qkv.split(heads, 1)[1]).all()
    return torch.stack(out)


MIXED = [(1, 40), (1, 1), (1, 300), (7, 7), (5, 80), (1, 9)]
STEPS = {
    "decode alone": [(1, 40), (1, 1), (1, 300)],
    "prompts alone": [(9, 9), (4, 60)],
    "mixed": MIXED,
    "one token behind a prompt": [(8, 8), (1, 90), (1, 3)],
    "one row": [(1, 5)],
}


@pytest.mark.parametrize("name", ["triton", "flashinfer"])
@pytest.mark.parametrize("step", STEPS)
def test_every_row_gets_the_references_result(config: ModelConfig, name: str, step: str) -> None:
    host = batch_of_rows(STEPS[step])
    backend: AttentionBackend = _triton(config, TorchKernels())
    if name == "flashinfer":
        backend = _flashinfer(config, FakeFlashInfer())

    found = _attend(config, backend, host)

    expected = _attend(config, TorchReferenceAttention(), host)
    # f32, sums of up to 300 terms in another order.
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_decoding_rows_and_prompts_go_to_different_kernels(config: ModelConfig) -> None:
    kernels, package = TorchKernels(), FakeFlashInfer()

    _attend(config, _triton(config, kernels), batch_of_rows(MIXED))
    _attend(config, _flashinfer(config, package), batch_of_rows(MIXED))

    assert kernels.calls == [("decode", 3), ("extend", 3)] * 2  # once per layer
    assert kernels.max_query_lens == [7, 7]
    assert package.calls == [("decode", 3), ("extend", 3)], "planned once for both layers"


def _with_shared_prefix() -> ForwardBatch:
    host = batch_of_rows([(1, 5000), (1, 40), (1, 4200), (1, 4100), (6, 6)])
    for row in (3, 4):
        host.slot_table[row, :4000] = host.slot_table[1, :4000]
    return host


@pytest.mark.parametrize("name", ["triton", "flashinfer"])
def test_a_shared_prefix_is_read_once_with_the_same_result(config: ModelConfig, name: str) -> None:
    host = _with_shared_prefix()
    kernels, package = TorchKernels(), FakeFlashInfer()
    backend: AttentionBackend = _triton(config, kernels)
    if name == "flashinfer":
        backend = _flashinfer(config, package)

    found = _attend(config, backend, host)

    expected = _attend(config, TorchReferenceAttention(), host)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    if name == "triton":
        assert kernels.calls[0] == ("shared", 4)
        assert kernels.groups[0].rows.tolist() == [0, 2, 3, 1]
        assert kernels.groups[0].cu_rows.tolist() == [0, 3, 4]
        assert kernels.groups[0].prefix_lens.tolist() == [4000, 0, 4000, 4000]
    else:
        assert package.calls == [("cascade", 3), ("decode", 1), ("extend", 1)]


def test_deterministic_steps_cut_rows_alike_and_share_nothing(config: ModelConfig) -> None:
    kernels, package = TorchKernels(), FakeFlashInfer()
    triton = _triton(config, kernels, is_deterministic=True)
    flashinfer = _flashinfer(config, package, is_deterministic=True)

    for host in (_with_shared_prefix(), batch_of_rows([(1, 5)]), batch_of_rows(MIXED)):
        _attend(config, triton, host)
        _attend(config, flashinfer, host)

    (split_tokens,) = set(kernels.split_tokens)
    (num_splits,) = set(kernels.num_splits)
    assert split_tokens is not None and split_tokens * num_splits >= MAX_CONTEXT
    assert set(kernels.max_query_lens) == {MAX_CONTEXT}, "tiles of one size"
    assert {name for name, _ in kernels.calls} == {"decode", "extend"}
    assert {name for name, _ in package.calls} == {"decode", "extend"}
    assert all(one["disable_split_kv"] for one in package.plan_options)


def test_more_one_token_rows_than_the_workspace_is_for_are_served_too(
    config: ModelConfig,
) -> None:
    host = batch_of_rows([(1, 10 + row) for row in range(MAX_ROWS + 5)])
    kernels = TorchKernels()

    found = _attend(config, _triton(config, kernels), host)

    expected = _attend(config, TorchReferenceAttention(), host)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    assert kernels.calls[:2] == [("decode", MAX_ROWS), ("extend", 5)]


def test_a_step_takes_another_form_for_a_prefix_that_saves_gigabytes(config: ModelConfig) -> None:
    host = batch_of_rows([(1, 5000)] * 3)
    host.slot_table[2:4, :4500] = host.slot_table[1, :4500]
    much = {"kv_bytes": 1 << 30}

    def triton(**options: Any) -> StepForm:
        return _triton(config, TorchKernels(), **options).choose_form(host)

    def flashinfer(**options: Any) -> StepForm:
        return _flashinfer(config, FakeFlashInfer(), **options).choose_form(host)

    assert triton(**much) is StepForm.SHARED_PREFIX
    assert flashinfer(**much) is StepForm.EAGER
    assert triton() is flashinfer() is StepForm.PLAIN
    assert triton(**much, is_deterministic=True) is StepForm.PLAIN


def test_what_rows_share_has_the_same_shapes_in_every_captured_step(config: ModelConfig) -> None:
    # Three rows share one prefix, two another, one nothing; two rows are padding.
    host = batch_of_rows([(1, 5000), (1, 5000), (1, 40), (1, 5000), (1, 5000), (1, 5000)])
    for leader, rows in ((1, (2, 4)), (5, (6,))):
        for row in rows:
            host.slot_table[row, :4500] = host.slot_table[leader, :4500]
    attention = _triton(config, TorchKernels())
    shapes = {name: one.shape for name, one in attention.prefix_arrays(8, None).items()}

    arrays = attention.prefix_arrays(8, host)

    assert {name: one.shape for name, one in arrays.items()} == shapes
    assert arrays["rows"].tolist() == [0, 1, 3, 4, 5, 2, 6, 7]
    assert arrays["cu_rows"].tolist()[:4] == [0, 3, 5, 8]
    assert set(arrays["cu_rows"].tolist()[3:]) == {8}, "groups without rows"
    assert arrays["prefix_lens"].tolist() == [4500, 4500, 0, 4500, 4500, 4500, 0, 0]


def test_a_captured_step_with_a_shared_prefix_gives_the_references_result(
    config: ModelConfig,
) -> None:
    host = batch_of_rows([(1, 5000), (1, 5000), (1, 40), (1, 1)])  # the last is padding
    host.slot_table[2, :4500] = host.slot_table[1, :4500]
    kernels = TorchKernels()
    attention = _triton(config, kernels)
    generator = torch.Generator().manual_seed(0)
    pool = KvPool(config, int(host.slot_table.max()) + 1, torch.float32, CPU)
    pool.k.copy_(torch.randn(pool.k.shape, generator=generator))
    pool.v.copy_(torch.randn(pool.v.shape, generator=generator))
    heads = (config.num_heads, config.num_kv_heads, config.num_kv_heads)
    qkv = torch.randn(4, sum(heads), config.head_dim, generator=generator)
    prefix = _upload(attention.prefix_arrays(4, host))
    static = replace(TensorBatch.of(host, CPU), host=None, prefix=prefix)

    attention.prepare(static)
    found = attention.forward(*qkv.split(heads, 1), 0, pool, static)

    reference = TorchReferenceAttention()
    reference.prepare(static)
    expected = reference.forward(*qkv.split(heads, 1), 0, pool, static)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    assert kernels.calls == [("shared", 4)]


def test_a_flashinfer_plan_waits_until_the_last_one_is_copied(config: ModelConfig) -> None:
    package = FakeFlashInfer()
    attention = _flashinfer(config, package)

    for _ in range(3):
        attention.prepare(TensorBatch.of(batch_of_rows(MIXED), CPU))
        assert package.num_uncopied_plans == 2, "those of this step alone"


def test_a_captured_flashinfer_step_is_planned_anew_for_each_replay(config: ModelConfig) -> None:
    package = FakeFlashInfer()
    attention = _flashinfer(config, package)
    padded = batch_of_rows([(1, 50), (1, 20), (1, 30), (1, 1)])
    static = replace(
        TensorBatch.of(padded, CPU), kv_lens=torch.ones(4, dtype=torch.int32), host=None
    )
    attention.plan_capture(4, static)
    static.kv_lens.copy_(torch.from_numpy(padded.kv_lens))
    rows = batch_of_rows([(1, 50), (1, 20), (1, 30)])

    attention.plan_replay(4, rows)
    attention.prepare(static)
    generator = torch.Generator().manual_seed(0)
    pool = KvPool(config, 200, torch.float32, CPU)
    pool.k.copy_(torch.randn(pool.k.shape, generator=generator))
    pool.v.copy_(torch.randn(pool.v.shape, generator=generator))
    heads = (config.num_heads, config.num_kv_heads, config.num_kv_heads)
    qkv = torch.randn(4, sum(heads), config.head_dim, generator=generator)
    found = attention.forward(*qkv.split(heads, 1), 0, pool, static)

    reference = TorchReferenceAttention()
    reference.prepare(static)
    expected = reference.forward(*qkv.split(heads, 1), 0, pool, static)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    assert package.calls == [("graph", 4), ("graph", 4)]


@pytest.mark.parametrize(
    ("fields", "dtype", "expected"),
    [
        ({"head_dim": 80}, torch.bfloat16, "head_dim is 80"),
        ({"head_dim": 128}, torch.float8_e4m3fn, "keys and values are torch.float8_e4m3fn"),
        ({"head_dim": 128}, torch.bfloat16, None),
    ],
)
def test_what_flashinfer_cannot_serve_is_named(
    config: ModelConfig, fields: dict[str, Any], dtype: torch.dtype, expected: str | None
) -> None:
    reason = unsupported_reason(replace(config, **fields), dtype)

    assert reason is None if expected is None else expected in str(reason)


@pytest.mark.parametrize("name", [one.name for one in dataclasses.fields(TritonKernels)])
def test_the_stand_ins_take_what_the_kernels_take(name: str) -> None:
    pytest.importorskip("triton", reason="needs triton")
    real = inspect.signature(getattr(load_triton_kernels(), name)).parameters
    ours = inspect.signature(getattr(TorchKernels().kernels(), name)).parameters

    def by_place(parameters: Mapping[str, inspect.Parameter]) -> list[str]:
        return [key for key, one in parameters.items() if one.kind != one.KEYWORD_ONLY]

    if name in ("choose_num_splits", "workspace_floats"):  # called by place
        assert len(by_place(ours)) == len(by_place(real))
        return
    assert by_place(ours) == by_place(real)[: len(by_place(ours))]
    assert ours.keys() <= real.keys()
    needed = {key for key, one in real.items() if one.default is one.empty}
    assert needed <= ours.keys()
