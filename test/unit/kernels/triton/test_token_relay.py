"""Token ids from step to step on the device, interpreted."""

from __future__ import annotations

import pytest
import torch
from support.guarded_tensors import GuardedOutput, guarded

from runtime.kernels.triton.token_relay import put, take


@pytest.mark.parametrize("num_rows", [1, 7, 256, 300])
@pytest.mark.parametrize("ids_dtype", [torch.int64, torch.int32])
def test_tokens_are_taken_to_their_places(num_rows: int, ids_dtype: torch.dtype) -> None:
    input_ids = GuardedOutput.empty((500,), ids_dtype)
    last_tokens = guarded(torch.randint(100_000, (400,)))
    places = guarded(torch.randperm(500)[:num_rows])
    rows = guarded(torch.randint(400, (num_rows,)))
    expected = input_ids.tensor.clone()
    expected[places] = last_tokens[rows].to(ids_dtype)

    take(input_ids.tensor, last_tokens, places, rows)

    assert torch.equal(input_ids.tensor, expected)
    input_ids.assert_guards_hold()


@pytest.mark.parametrize("num_rows", [1, 7, 256, 300])
def test_drawn_tokens_are_put_in_their_rows(num_rows: int) -> None:
    last_tokens = GuardedOutput.empty((400,), torch.int64)
    sampled = guarded(torch.randint(100_000, (num_rows,)))
    rows = guarded(torch.randperm(400)[:num_rows])
    expected = last_tokens.tensor.clone()
    expected[rows] = sampled

    put(last_tokens.tensor, rows, sampled)

    assert torch.equal(last_tokens.tensor, expected)
    last_tokens.assert_guards_hold()


def test_a_row_that_is_put_twice_holds_one_of_the_tokens() -> None:
    last_tokens = torch.zeros(3, dtype=torch.int64)

    put(last_tokens, torch.tensor([0, 2, 0]), torch.tensor([11, 22, 33]))

    assert last_tokens[0] in (11, 33)
    assert last_tokens[1:].tolist() == [0, 22]


def test_no_row_launches_nothing() -> None:
    tokens, nothing = torch.arange(3), torch.empty(0, dtype=torch.int64)

    take(tokens, tokens, nothing, nothing)
    put(tokens, nothing, nothing)

    assert tokens.tolist() == [0, 1, 2]
