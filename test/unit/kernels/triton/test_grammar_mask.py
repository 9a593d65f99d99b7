"""Forbidding ids by bitmask, interpreted."""

from __future__ import annotations

import math

import pytest
import torch
from support.guarded_tensors import GuardedOutput, guarded, same_bits

from runtime.kernels.triton.grammar_mask import apply_bitmask


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("vocab_size", [1, 31, 32, 33, 2048, 4099])
def test_ids_without_a_bit_become_impossible_and_others_stay(
    vocab_size: int, dtype: torch.dtype
) -> None:
    logits = GuardedOutput.empty((5, vocab_size), dtype)
    logits.tensor.copy_(torch.randn(5, vocab_size))
    num_words = -(-vocab_size // 32)
    # Random bits past the vocabulary too: they must not be taken for ids of the next row.
    bitmask = guarded(torch.randint(-(2**31), 2**31, (3, num_words)).to(torch.int32))
    bitmask[1] = -1
    rows = guarded(torch.tensor([4, 0, 2]))
    expected = logits.tensor.clone()
    for words, row in zip(bitmask.tolist(), rows.tolist(), strict=True):
        for token_id in range(vocab_size):
            if not words[token_id // 32] >> token_id % 32 & 1:
                expected[row, token_id] = -math.inf

    apply_bitmask(logits.tensor, bitmask, rows)

    assert same_bits(logits.tensor, expected)
    logits.assert_guards_hold()


def test_a_mask_of_zeros_forbids_the_row_and_no_other() -> None:
    logits = torch.zeros(2, 100)

    apply_bitmask(logits, torch.zeros(1, 4, dtype=torch.int32), torch.tensor([1]))

    assert torch.equal(logits[0], torch.zeros(100))
    assert torch.equal(logits[1], torch.full((100,), -math.inf))


def test_a_nan_that_is_forbidden_is_gone() -> None:
    logits = torch.tensor([[math.nan, 1.0, math.nan]])

    apply_bitmask(logits, torch.tensor([[0b110]], dtype=torch.int32), torch.tensor([0]))

    assert logits[0, 0] == -math.inf
    assert logits[0, 1] == 1.0
    assert logits[0, 2].isnan()


def test_no_mask_launches_nothing() -> None:
    logits = torch.zeros(2, 100)

    apply_bitmask(logits, torch.zeros(0, 4, dtype=torch.int32), torch.empty(0, dtype=torch.int64))

    assert torch.equal(logits, torch.zeros(2, 100))
