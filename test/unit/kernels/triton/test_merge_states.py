"""Merging partial attention by log-sum-exp against float64, interpreted."""

from __future__ import annotations

import math

import pytest
import torch
from support.guarded_tensors import GuardedOutput, guarded, same_bits

from runtime.kernels.triton.merge_states import merge_states, partial_states, workspace_floats


@pytest.mark.parametrize("num_states", [1, 2, 16, 17, 40])
@pytest.mark.parametrize("head_dim", [64, 80])
def test_merged_states_equal_attention_over_all_keys(num_states: int, head_dim: int) -> None:
    random = torch.Generator().manual_seed(num_states)
    workspace = guarded(torch.zeros(workspace_floats(2, 3, num_states, head_dim)))
    states = partial_states(workspace, 2, 3, num_states, head_dim)
    assert states.lse is not None
    states.out.copy_(torch.randn(states.out.shape, generator=random))
    states.lse.copy_(20 * torch.randn(states.lse.shape, generator=random))
    out, lse = (GuardedOutput.empty(shape, torch.float32) for shape in ((2, 3, head_dim), (2, 3)))

    merge_states(states, out.tensor, lse.tensor)

    weights = torch.softmax(states.lse.double() * math.log(2), -1)
    expected = (weights[..., None] * states.out.double()).sum(2)
    expected_lse = torch.logsumexp(states.lse.double() * math.log(2), -1) / math.log(2)
    torch.testing.assert_close(out.tensor.double(), expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(lse.tensor.double(), expected_lse, rtol=1e-6, atol=1e-5)
    out.assert_guards_hold()
    lse.assert_guards_hold()


def test_outputs_of_dead_states_are_not_read_and_change_no_bit() -> None:
    live = partial_states(torch.randn(workspace_floats(1, 1, 3, 64)), 1, 1, 3, 64)
    more = partial_states(torch.full((workspace_floats(1, 1, 30, 64),), math.nan), 1, 1, 30, 64)
    assert live.lse is not None and more.lse is not None
    more.out[:, :, :3] = live.out
    more.lse.fill_(-math.inf)
    more.lse[:, :, :3] = live.lse
    outs = torch.empty(2, 1, 1, 64)

    merge_states(live, outs[0])
    merge_states(more, outs[1])

    assert same_bits(outs[0], outs[1])


def test_a_row_without_keys_becomes_zero() -> None:
    states = partial_states(torch.full((workspace_floats(1, 1, 5, 64),), math.nan), 1, 1, 5, 64)
    assert states.lse is not None
    states.lse.fill_(-math.inf)
    out, lse = torch.full((1, 1, 64), math.nan), torch.zeros(1, 1)

    merge_states(states, out, lse)

    assert torch.equal(out, torch.zeros(1, 1, 64))
    assert lse.item() == -math.inf
