"""The norm of rows, alone and after an addition, against float64, interpreted."""

from __future__ import annotations

import pytest
import torch
from support.guarded_tensors import GuardedOutput, guarded, same_bits

from runtime.kernels.triton.rms_norm import add_rms_norm, rms_norm

DTYPES = [torch.float32, torch.float16]
SHAPES = [(1, 1), (3, 64), (2, 576), (5, 80), (1, 4096), (2, 5000)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_every_row_gets_its_norm(shape: tuple[int, int], dtype: torch.dtype) -> None:
    x, weight = guarded(_random(shape, dtype)), guarded(_random(shape[1:], dtype))
    out = GuardedOutput.empty(shape, dtype)

    assert rms_norm(x, weight, 1e-5, out=out.tensor) is out.tensor

    _assert_close(out.tensor, _expected(x, weight, 1e-5))
    out.assert_guards_hold()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_the_sum_becomes_the_residual_and_is_normed(
    shape: tuple[int, int], dtype: torch.dtype
) -> None:
    x, weight = guarded(_random(shape, dtype)), guarded(_random(shape[1:], dtype))
    residual = GuardedOutput.empty(shape, dtype)
    residual.tensor.copy_(_random(shape, dtype))
    added = (x.double() + residual.tensor.double()).to(dtype)

    normed = add_rms_norm(x, residual.tensor, weight, 1e-5)

    assert same_bits(residual.tensor, added)
    _assert_close(normed, _expected(added, weight, 1e-5))
    residual.assert_guards_hold()


def test_rows_of_a_wider_matrix_are_normed_where_they_are() -> None:
    matrix = _random((4, 300), torch.float32)
    x, beside = matrix[:, 100:200], matrix.clone()
    weight = _random((100,), torch.float32)
    expected = _expected(x, weight, 1e-6)

    rms_norm(x, weight, 1e-6, out=x)

    _assert_close(x, expected)
    assert torch.equal(matrix[:, :100], beside[:, :100])
    assert torch.equal(matrix[:, 200:], beside[:, 200:])


def test_an_offset_is_added_to_the_weight() -> None:
    x, weight = _random((2, 64), torch.float16), _random((64,), torch.float16)
    residual = torch.zeros_like(x)
    expected = _expected(x, weight.double() + 1, 1e-6)

    _assert_close(rms_norm(x, weight, 1e-6, weight_offset=1.0), expected)
    _assert_close(add_rms_norm(x, residual, weight, 1e-6, weight_offset=1.0), expected)


def test_weights_may_be_wider_than_the_rows() -> None:
    x, weight = _random((2, 64), torch.float16), _random((64,), torch.float32)

    normed = rms_norm(x, weight, 1e-6)

    assert normed.dtype == torch.float16
    _assert_close(normed, _expected(x, weight, 1e-6))


def test_zero_rows_stay_zero_and_large_f16_rows_do_not_overflow() -> None:
    x = torch.stack([torch.zeros(64), torch.full((64,), 60000.0)]).half()

    normed = rms_norm(x, torch.ones(64).half(), 1e-6)

    assert torch.equal(normed, torch.stack([torch.zeros(64), torch.ones(64)]).half())


def test_no_rows_give_no_rows() -> None:
    nothing, weight = torch.empty(0, 64), torch.ones(64)

    assert rms_norm(nothing, weight, 1e-6).shape == (0, 64)
    assert add_rms_norm(nothing, nothing, weight, 1e-6).shape == (0, 64)


def test_a_width_that_fits_no_program_is_refused() -> None:
    with pytest.raises(ValueError, match="width 20000 is not supported"):
        rms_norm(torch.empty(1, 20000), torch.empty(20000), 1e-6)


def _random(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def _expected(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    wide = x.double()
    return wide / (wide.square().mean(-1, keepdim=True) + eps).sqrt() * weight.double()


def _assert_close(found: torch.Tensor, expected: torch.Tensor) -> None:
    # One rounding to the dtype, and a few of f32 before it.
    rtol = 2**-20 if found.dtype == torch.float32 else 2**-10
    torch.testing.assert_close(found.double(), expected, rtol=rtol, atol=1e-7)
