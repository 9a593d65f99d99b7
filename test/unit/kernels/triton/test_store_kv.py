"""Writing keys and values to their slots, as fp8 too, interpreted."""

from __future__ import annotations

from unittest import mock

import pytest
import torch
from support.guarded_tensors import GuardedOutput, guarded, same_bits

from runtime.kernels.triton import launch_table
from runtime.kernels.triton.store_kv import store_kv


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", [(1, 1, 64), (5, 3, 80), (3, 8, 256), (2, 40, 128)])
def test_tokens_land_in_their_slots_and_nowhere_else(
    shape: tuple[int, int, int], dtype: torch.dtype
) -> None:
    num_tokens, num_kv_heads, head_dim = shape
    k, v = (guarded(torch.randn(shape).to(dtype)) for _ in range(2))
    pools = [GuardedOutput.empty((20, num_kv_heads, head_dim), dtype) for _ in range(2)]
    expected = [pool.tensor.clone() for pool in pools]
    slots = torch.randperm(20)[:num_tokens]

    store_kv(k, v, pools[0].tensor, pools[1].tensor, guarded(slots))

    for pool, untouched, values in zip(pools, expected, (k, v), strict=True):
        untouched[slots] = values
        assert same_bits(pool.tensor, untouched)
        pool.assert_guards_hold()


def test_keys_and_values_may_be_views_of_one_matrix() -> None:
    qkv = torch.randn(4, 10 * 64)
    k, v = qkv[:, 6 * 64 : 8 * 64].view(4, 2, 64), qkv[:, 8 * 64 :].view(4, 2, 64)
    k_pool, v_pool = torch.zeros(9, 2, 64), torch.zeros(9, 2, 64)
    slots = torch.tensor([8, 1, 5, 2])

    store_kv(k, v, k_pool, v_pool, slots)

    assert torch.equal(k_pool[slots], k)
    assert torch.equal(v_pool[slots], v)


# Capability 80 has no fp8 type: there the kernel rounds to bytes itself. On later ones the GPU
# rounds; the interpreter cuts off there, so only values that need no rounding are compared.
@pytest.mark.parametrize("capability", [80, 90])
def test_fp8_is_the_nearest_value_and_clamped(capability: int) -> None:
    codes = torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    sizes = torch.cat([codes, torch.tensor([464.0, 1e6])])
    if capability < 89:
        # The middles between neighbours, and what is just beside a middle.
        middles = (codes[1:] + codes[:-1]) / 2
        beside = torch.cat([middles.nextafter(codes[1:]), middles.nextafter(codes[:-1])])
        sizes = torch.cat([sizes, middles, beside, torch.tensor([1e-9])])
    values = torch.cat([sizes, -sizes])
    values = torch.nn.functional.pad(values, (0, 1024 - len(values))).view(2, 8, 64)
    k_pool, v_pool = (torch.zeros(4, 8, 64).to(torch.float8_e4m3fn) for _ in range(2))

    with mock.patch.object(launch_table, "capability", return_value=capability):
        store_kv(values * 2, values / 4, k_pool, v_pool, torch.tensor([3, 1]), 2.0, 0.25)

    expected = values.clamp(-448, 448).to(torch.float8_e4m3fn)
    # As numbers: the sign of zero is free.
    assert torch.equal(k_pool[[3, 1]].float(), expected.float())
    assert torch.equal(v_pool[[3, 1]].float(), expected.float())


def test_no_token_launches_nothing() -> None:
    pool = torch.zeros(2, 1, 64)
    nothing = torch.empty(0, 1, 64)

    store_kv(nothing, nothing, pool, pool, torch.empty(0, dtype=torch.int64))

    assert not pool.any()
