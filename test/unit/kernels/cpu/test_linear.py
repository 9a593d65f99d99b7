"""Linear layers of the CPU engine against float64, at every instruction level this machine has."""

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from gguf.quants import dequantize, quantize
from support.cpu_rig import relative_error, tiny_config

from runtime.kernels.cpu.abi_types import DType, Level, TensorId, WeightFormat, load_library
from runtime.kernels.cpu.build import library_path
from runtime.kernels.cpu.library import CpuModel, EngineError

BEST_LEVEL = load_library(library_path()).rt_best_level()
LEVELS = [level for level in Level if 0 <= level <= BEST_LEVEL]
ROWS = (1, 2, 5, 16, 17, 31, 32, 33, 70)
# GATE is [intermediate, hidden]: sizes that fill panels and blocks, and sizes that do not.
SHAPES = ((16, 32), (33, 32), (96, 80), (203, 66), (8, 576), (80, 1537))


def linear_model(n: int, k: int, level: Level, dtype: torch.dtype, threads: int = 2) -> CpuModel:
    return CpuModel(
        tiny_config(
            hidden_size=k,
            intermediate_size=n,
            level=level,
            compute_dtype=dtype,
            num_threads=threads,
            num_layers=1,
        )
    )


def product(model: CpuModel, x: torch.Tensor) -> torch.Tensor:
    return model.linear(TensorId.GATE, x, layer=0)


@pytest.mark.parametrize("level", LEVELS, ids=lambda level: level.name)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
def test_matches_float64_for_every_shape(level: Level, dtype: torch.dtype) -> None:
    for n, k in SHAPES:
        weight = torch.randn(n, k, generator=torch.Generator().manual_seed(n)).to(dtype)
        model = linear_model(n, k, level, dtype)
        model.set_tensor(TensorId.GATE, weight, layer=0)
        for m in ROWS:
            x = torch.randn(m, k, generator=torch.Generator().manual_seed(m)).to(dtype).float()
            expected = x.double() @ weight.double().T
            assert relative_error(product(model, x), expected) < 2e-6, (n, k, m)


def test_no_rows_give_no_output() -> None:
    model = linear_model(16, 32, Level.AUTO, torch.bfloat16)
    model.set_tensor(TensorId.GATE, torch.randn(16, 32).bfloat16(), layer=0)
    assert product(model, torch.empty(0, 32)).shape == (0, 16)


@pytest.mark.parametrize("level", LEVELS, ids=lambda level: level.name)
@pytest.mark.parametrize("mode", ["f32", "bf16", "w8a8", "q4_0", "q4_1", "q8_0"])
def test_a_row_has_the_same_bits_whatever_shares_its_batch(level: Level, mode: str) -> None:
    n, k = 96, 160
    dtype = torch.float32 if mode == "f32" else torch.bfloat16
    weight = torch.randn(n, k, generator=torch.Generator().manual_seed(3))
    x = torch.randn(70, k, generator=torch.Generator().manual_seed(4))
    results = []
    for threads in (1, 2):
        model = linear_model(n, k, level, dtype, threads)
        if mode.startswith("q"):
            set_blocks(model, weight, GGMLQuantizationType[mode.upper()])
        else:
            form = WeightFormat.W8A8 if mode == "w8a8" else WeightFormat.KEEP
            model.set_tensor(TensorId.GATE, weight.to(dtype), 0, form)
        whole = product(model, x)
        for begin, end in ((0, 1), (1, 6), (6, 23), (23, 56), (69, 70)):
            assert torch.equal(product(model, x[begin:end]), whole[begin:end]), (begin, end)
        results.append(whole)
    assert torch.equal(*results)


def set_blocks(model: CpuModel, weight: torch.Tensor, kind: GGMLQuantizationType) -> np.ndarray:
    """Give the engine GGUF blocks of weight; returns what they stand for."""
    blocks = quantize(weight.numpy(), kind)
    dtype = DType[kind.name]
    model.set_blocks(TensorId.GATE, torch.from_numpy(blocks), dtype, weight.shape[1], layer=0)
    return np.asarray(dequantize(blocks, kind))


@pytest.mark.parametrize("level", LEVELS, ids=lambda level: level.name)
@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0"])
def test_gguf_blocks_multiply_as_their_dequantised_values(level: Level, kind: str) -> None:
    for n, k in ((16, 32), (33, 96), (72, 576)):
        weight = torch.randn(n, k, generator=torch.Generator().manual_seed(n))
        model = linear_model(n, k, level, torch.bfloat16)
        values = set_blocks(model, weight, GGMLQuantizationType[kind])
        # Inputs that 8 bits hold exactly leave only the rounding of f32.
        x = torch.randint(-127, 128, (9, k), generator=torch.Generator().manual_seed(1)).float()
        x[:, ::32] = 127.0
        expected = x.double() @ torch.from_numpy(values).double().T
        assert relative_error(product(model, x), expected) < 2e-6
        # Any input: 8 bits a value, one scale a block.
        x = torch.randn(9, k, generator=torch.Generator().manual_seed(2))
        expected = x.double() @ torch.from_numpy(values).double().T
        assert relative_error(product(model, x), expected) < 0.01


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0"])
def test_gguf_blocks_give_the_same_bits_at_both_vector_neural_levels(kind: str) -> None:
    levels = [level for level in LEVELS if level >= Level.AVX512_BF16]
    x = torch.randn(5, 96, generator=torch.Generator().manual_seed(2))
    outputs = []
    for level in levels:
        model = linear_model(48, 96, level, torch.bfloat16)
        weight = torch.randn(48, 96, generator=torch.Generator().manual_seed(7))
        set_blocks(model, weight, GGMLQuantizationType[kind])
        outputs.append(product(model, x))
    assert all(torch.equal(output, outputs[0]) for output in outputs)


def test_k_quant_blocks_are_widened_to_bf16() -> None:
    # gguf's Python package cannot write K-quants: random bytes with sane scales stand in.
    rng = np.random.default_rng(5)
    for kind, size in (("Q4_K", 144), ("Q6_K", 210)):
        blocks = rng.integers(0, 256, (24, 2 * size), dtype=np.uint8)
        scale = np.frombuffer(np.float16(0.01).tobytes(), dtype=np.uint8)
        for block in range(2):
            at = block * size + (208 if kind == "Q6_K" else 0)
            blocks[:, at : at + 2] = scale
            if kind == "Q4_K":
                blocks[:, at + 2 : at + 4] = scale
        values = np.asarray(dequantize(blocks, GGMLQuantizationType[kind]))
        model = linear_model(24, 512, Level.AUTO, torch.bfloat16)
        model.set_blocks(TensorId.GATE, torch.from_numpy(blocks), DType[kind], 512, layer=0)
        x = torch.randn(3, 512, generator=torch.Generator().manual_seed(2)).bfloat16().float()
        expected = x.double() @ torch.from_numpy(values).bfloat16().double().T
        assert relative_error(product(model, x), expected) < 2e-6


@pytest.mark.parametrize("level", LEVELS, ids=lambda level: level.name)
def test_eight_bit_channels_stay_within_their_rounding(level: Level) -> None:
    for n, k in ((33, 80), (72, 576), (16, 1537)):
        weight = torch.randn(n, k, generator=torch.Generator().manual_seed(n))
        model = linear_model(n, k, level, torch.bfloat16)
        model.set_tensor(TensorId.GATE, weight, 0, WeightFormat.W8A8)
        for m in (1, 16, 33):
            x = torch.randn(m, k, generator=torch.Generator().manual_seed(m))
            expected = x.double() @ weight.double().T
            assert relative_error(product(model, x), expected) < 0.02


def test_a_wrong_shape_is_refused_with_both_shapes() -> None:
    model = linear_model(16, 32, Level.AUTO, torch.bfloat16)
    with pytest.raises(EngineError, match=r"\[16, 31\], expected \[16, 32\]"):
        model.set_tensor(TensorId.GATE, torch.zeros(16, 31), layer=0)


def test_a_level_above_the_processor_is_refused() -> None:
    if BEST_LEVEL == Level.AMX:
        pytest.skip("this processor has every level")
    with pytest.raises(EngineError, match="above what this processor has"):
        linear_model(16, 32, Level.AMX, torch.bfloat16)
