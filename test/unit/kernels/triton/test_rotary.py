"""Turning queries and keys by their positions against float64, interpreted."""

from __future__ import annotations

import pytest
import torch
from support.guarded_tensors import GuardedOutput, guarded, same_bits

from runtime.kernels.triton.rotary import rotary

NUM_POSITIONS = 50
DTYPES = [torch.float32, torch.float16]
# (T, H, K, D)
SHAPES = [(1, 1, 1, 64), (3, 9, 3, 64), (2, 20, 4, 128), (4, 5, 5, 80), (2, 3, 1, 256)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("has_norm", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_heads_turn_in_place_inside_one_matrix(
    shape: tuple[int, int, int, int], has_norm: bool, dtype: torch.dtype
) -> None:
    num_tokens, num_heads, num_kv_heads, head_dim = shape
    qkv = GuardedOutput.empty((num_tokens, num_heads + 2 * num_kv_heads, head_dim), dtype)
    qkv.tensor.copy_(_random(qkv.tensor.shape))
    before = qkv.tensor.clone()
    q, k, v = qkv.tensor.split_with_sizes((num_heads, num_kv_heads, num_kv_heads), dim=1)
    old_q, old_k, old_v = before.split_with_sizes((num_heads, num_kv_heads, num_kv_heads), dim=1)
    positions = guarded(torch.randint(NUM_POSITIONS, (num_tokens,)))
    table = guarded(_table(head_dim))
    norms = [guarded(_random((head_dim,)).to(dtype)) if has_norm else None for _ in range(2)]

    rotary(q, k, positions, table, norms[0], norms[1], eps=1e-5)

    _assert_close(q, _expected(old_q, positions, table, norms[0]))
    _assert_close(k, _expected(old_k, positions, table, norms[1]))
    assert same_bits(v, old_v)
    qkv.assert_guards_hold()


@pytest.mark.parametrize("dtype", DTYPES)
def test_queries_and_keys_may_be_tensors_of_their_own(dtype: torch.dtype) -> None:
    q, k = GuardedOutput.empty((3, 6, 64), dtype), GuardedOutput.empty((3, 2, 64), dtype)
    q.tensor.copy_(_random((3, 6, 64)))
    k.tensor.copy_(_random((3, 2, 64)))
    positions, table = torch.tensor([0, 49, 7]), _table(64)
    expected = [_expected(one.tensor.clone(), positions, table, None) for one in (q, k)]

    rotary(q.tensor, k.tensor, positions, table)

    _assert_close(q.tensor, expected[0])
    _assert_close(k.tensor, expected[1])
    q.assert_guards_hold()
    k.assert_guards_hold()


def test_position_zero_changes_no_bit() -> None:
    q, k = _random((2, 4, 64)).half(), _random((2, 2, 64)).half()
    before = q.clone(), k.clone()

    rotary(q, k, torch.zeros(2, dtype=torch.int64), _table(64))

    assert torch.equal(q, before[0])
    assert torch.equal(k, before[1])


def test_no_token_launches_nothing() -> None:
    rotary(
        torch.empty(0, 4, 64),
        torch.empty(0, 2, 64),
        torch.empty(0, dtype=torch.int64),
        _table(64),
    )


def test_one_norm_without_the_other_is_refused() -> None:
    q, k = torch.zeros(1, 1, 64), torch.zeros(1, 1, 64)

    with pytest.raises(AssertionError, match="one of q_norm and k_norm is missing"):
        rotary(q, k, torch.zeros(1, dtype=torch.int64), _table(64), q_norm=torch.ones(64))


def _random(shape: tuple[int, ...]) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def _table(head_dim: int) -> torch.Tensor:
    frequencies = 10000.0 ** (-torch.arange(0, head_dim, 2).double() / head_dim)
    angles = torch.arange(NUM_POSITIONS)[:, None] * frequencies
    return torch.cat([angles.cos(), angles.sin()], dim=1).float()


def _expected(
    x: torch.Tensor, positions: torch.Tensor, table: torch.Tensor, norm: torch.Tensor | None
) -> torch.Tensor:
    x = x.double()
    if norm is not None:
        x = x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * norm.double()
    cos, sin = table.double()[positions].unsqueeze(1).chunk(2, dim=-1)
    pairs = torch.complex(*x.chunk(2, dim=-1)) * torch.complex(cos, sin)
    return torch.cat([pairs.real, pairs.imag], dim=-1)


def _assert_close(found: torch.Tensor, expected: torch.Tensor) -> None:
    # One rounding to the dtype; the two products may cancel, so f32's errors are absolute.
    rtol = 2**-20 if found.dtype == torch.float32 else 2**-10
    torch.testing.assert_close(found.double(), expected, rtol=rtol, atol=4e-6)
