"""Linear layers of the CPU engine against float64, at every instruction level this machine has."""

import numpy as np
import pytest
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize, quantize
from support.cpu_rig import relative_error, tiny_config
from support.tiny_gguf import k_quant_blocks

from runtime.kernels.cpu.abi_types import DType, Level, TensorId, WeightFormat, load_library
from runtime.kernels.cpu.build import library_path
from runtime.kernels.cpu.library import CpuModel, EngineError

BEST_LEVEL = load_library(library_path()).rt_best_level()
LEVELS = [level for level in Level if 0 <= level <= BEST_LEVEL]
BLOCK_KINDS = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K")
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
    return torch.from_numpy(model.linear(TensorId.GATE, x, layer=0))


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
@pytest.mark.parametrize("mode", ["f32", "bf16", "w8a8", "w8a16", *BLOCK_KINDS])
def test_a_row_has_the_same_bits_whatever_shares_its_batch(level: Level, mode: str) -> None:
    n, k = 72, 768
    dtype = torch.float32 if mode == "f32" else torch.bfloat16
    weight = torch.randn(n, k, generator=torch.Generator().manual_seed(3))
    # Few rows, rows enough for tiles, and rows enough for several groups of tiles.
    x = torch.randn(150, k, generator=torch.Generator().manual_seed(4))
    # The last two leave two and six rows over, behind three tiles and behind a whole group.
    parts = ((0, 1), (1, 6), (6, 23), (23, 56), (60, 149), (69, 70), (6, 56), (60, 130))
    results = []
    for threads in (1, 2):
        model = linear_model(n, k, level, dtype, threads)
        if mode in BLOCK_KINDS:
            set_blocks(model, n, k, mode)
        else:
            form = WeightFormat[mode.upper()] if mode.startswith("w8") else WeightFormat.KEEP
            model.set_tensor(TensorId.GATE, weight.to(dtype), 0, form)
        whole = product(model, x)
        for begin, end in parts:
            assert torch.equal(product(model, x[begin:end]), whole[begin:end]), (begin, end)
        results.append(whole)
    assert torch.equal(*results)


def set_blocks(model: CpuModel, n: int, k: int, kind: str) -> torch.Tensor:
    """Give the engine [n, k] in GGUF blocks; returns the values they stand for in float64."""
    quantization = GGMLQuantizationType[kind]
    if kind.endswith("_K"):  # the gguf package cannot write these
        blocks = k_quant_blocks(n, k, quantization, seed=n)
    else:
        weight = torch.randn(n, k, generator=torch.Generator().manual_seed(n))
        blocks = quantize(weight.numpy(), quantization)
    model.set_blocks(TensorId.GATE, torch.from_numpy(blocks), DType[kind], k, layer=0)
    return torch.from_numpy(np.asarray(dequantize(blocks, quantization))).double()


def block_shapes(kind: str) -> tuple[tuple[int, int], ...]:
    if kind.endswith("_K"):
        return ((16, 256), (33, 768), (72, 1536))
    return ((16, 32), (33, 96), (72, 576), (48, 1056))


@pytest.mark.parametrize("level", LEVELS, ids=lambda level: level.name)
@pytest.mark.parametrize("kind", BLOCK_KINDS)
def test_gguf_blocks_multiply_as_their_dequantised_values(level: Level, kind: str) -> None:
    for n, k in block_shapes(kind):
        model = linear_model(n, k, level, torch.bfloat16)
        values = set_blocks(model, n, k, kind)
        for m in (0, 1, 7, 32, 513 if n == 33 else 33):
            # Inputs that 8 bits hold exactly leave only the rounding of f32.
            x = torch.randint(-127, 128, (m, k), generator=torch.Generator().manual_seed(m)).float()
            x[:, ::32] = 127.0
            assert relative_error(product(model, x), x.double() @ values.T) < 2e-6, (n, k, m)
            # Any input: 8 bits a value, one scale a block: 0.55 %, a single row may be worse.
            x = torch.randn(m, k, generator=torch.Generator().manual_seed(m))
            assert relative_error(product(model, x), x.double() @ values.T) < 0.02, (n, k, m)


@pytest.mark.parametrize("kind", BLOCK_KINDS)
def test_extreme_blocks_and_inputs_are_still_exact(kind: str) -> None:
    # All bits of every value, scale and input set one way: the largest integers there can be.
    k, size = 512, GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
    for fill in (0x00, 0x80, 0xFF):
        blocks = np.full((16, k // size[0], size[1]), fill, dtype=np.uint8)
        at = size[1] - 2 if kind == "Q6_K" else 0
        blocks[..., at : at + 2] = np.frombuffer(np.float16(0.5).tobytes(), np.uint8)
        if kind in ("Q4_1", "Q5_1", "Q4_K", "Q5_K"):
            blocks[..., 2:4] = np.frombuffer(np.float16(-0.25).tobytes(), np.uint8)
        blocks = blocks.reshape(16, -1)
        values = np.asarray(dequantize(blocks, GGMLQuantizationType[kind]))
        for level in LEVELS:
            model = linear_model(16, k, level, torch.bfloat16)
            model.set_blocks(TensorId.GATE, torch.from_numpy(blocks), DType[kind], k, layer=0)
            x = torch.full((40, k), 127.0)
            x[::2] = -127.0
            expected = (x.double() @ torch.from_numpy(values).double().T).float()
            assert torch.equal(product(model, x), expected), (fill, level)
            assert torch.equal(product(model, x[:1]), expected[:1]), (fill, level)


@pytest.mark.parametrize("kind", BLOCK_KINDS)
def test_gguf_blocks_give_the_same_bits_at_all_levels_that_fuse_multiply_and_add(kind: str) -> None:
    x = torch.randn(40, 768, generator=torch.Generator().manual_seed(2))
    outputs = []
    for level in [level for level in LEVELS if level >= Level.AVX2]:
        model = linear_model(48, 768, level, torch.bfloat16)
        set_blocks(model, 48, 768, kind)
        outputs.append(product(model, x))
    assert all(torch.equal(output, outputs[0]) for output in outputs)


@pytest.mark.parametrize(
    "k", [800, 1537, 2048]
)  # long rows are summed in parts where rows are many
@pytest.mark.parametrize("form", [WeightFormat.KEEP, WeightFormat.W8A8, WeightFormat.W8A16])
def test_many_long_rows_have_the_bits_of_each_alone(form: WeightFormat, k: int) -> None:
    model = linear_model(56, k, Level.AUTO, torch.bfloat16)
    weight = torch.randn(56, k, generator=torch.Generator().manual_seed(k)).bfloat16()
    model.set_tensor(TensorId.GATE, weight, 0, form)
    x = torch.randn(300, k, generator=torch.Generator().manual_seed(1)).bfloat16().float()
    many = product(model, x)
    for row in (0, 31, 32, 100, 159, 287, 299):
        assert torch.equal(product(model, x[row : row + 1])[0], many[row]), row


@pytest.mark.parametrize("kind", BLOCK_KINDS)
def test_gguf_blocks_take_the_bytes_they_take_in_the_file(kind: str) -> None:
    model = linear_model(64, 768, Level.AUTO, torch.bfloat16)
    set_blocks(model, 64, 768, kind)
    values, size = GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
    assert model.weight_bytes == 64 * 768 // values * size


def test_a_row_that_is_no_whole_number_of_blocks_is_refused() -> None:
    model = linear_model(16, 288, Level.AUTO, torch.bfloat16)
    blocks = torch.zeros(16, 2 * 144, dtype=torch.uint8)
    with pytest.raises(EngineError, match="not a multiple of the block size"):
        model.set_blocks(TensorId.GATE, blocks, DType.Q4_K, 288, layer=0)


@pytest.mark.parametrize("level", LEVELS, ids=lambda level: level.name)
@pytest.mark.parametrize(("form", "most"), [(WeightFormat.W8A8, 0.02), (WeightFormat.W8A16, 0.01)])
def test_eight_bit_channels_stay_within_their_rounding(
    level: Level, form: WeightFormat, most: float
) -> None:
    for n, k in ((33, 80), (72, 576), (16, 1537)):
        weight = torch.randn(n, k, generator=torch.Generator().manual_seed(n))
        model = linear_model(n, k, level, torch.bfloat16)
        model.set_tensor(TensorId.GATE, weight, 0, form)
        for m in (0, 1, 7, 16, 33, 70):
            x = torch.randn(m, k, generator=torch.Generator().manual_seed(m))
            expected = x.double() @ weight.double().T
            assert relative_error(product(model, x), expected) < most, (n, k, m)


@pytest.mark.parametrize("level", LEVELS, ids=lambda level: level.name)
def test_weight_only_eight_bits_round_nothing_but_the_weights(level: Level) -> None:
    for n, k in ((33, 80), (72, 576), (16, 1537), (64, 96)):
        weight = torch.randn(n, k, generator=torch.Generator().manual_seed(n))
        scale = weight.abs().amax(1, keepdim=True) / 127
        rounded = (weight / scale).round().double() * scale.double()
        model = linear_model(n, k, level, torch.bfloat16)
        model.set_tensor(TensorId.GATE, weight, 0, WeightFormat.W8A16)
        for m in (1, 5, 17, 32, 70):
            x = torch.randn(m, k, generator=torch.Generator().manual_seed(m)).bfloat16().float()
            # A value half way between two integers may go either way: 0.3 % of them are that near.
            assert relative_error(product(model, x), x.double() @ rounded.T) < 1e-4, (n, k, m)


def test_a_wrong_shape_is_refused_with_both_shapes() -> None:
    model = linear_model(16, 32, Level.AUTO, torch.bfloat16)
    with pytest.raises(EngineError, match=r"\[16, 31\], expected \[16, 32\]"):
        model.set_tensor(TensorId.GATE, torch.zeros(16, 31), layer=0)


def test_a_level_above_the_processor_is_refused() -> None:
    if BEST_LEVEL == Level.AMX:
        pytest.skip("this processor has every level")
    with pytest.raises(EngineError, match="above what this processor has"):
        linear_model(16, 32, Level.AMX, torch.bfloat16)
