"""Forbidding the ids whose bit in a grammar's bitmask is 0.

Shape letters: R rows of logits, M rows with a mask, V vocabulary.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

_WORDS_PER_PROGRAM = 64


def apply_bitmask(logits: torch.Tensor, bitmask: torch.Tensor, rows: torch.Tensor) -> None:
    """Set the logits of forbidden ids to minus infinity, in place.

    logits: [R, V] of any float type; bitmask: [M, ceil(V / 32)] int32, bit i % 32 of word i // 32
    being id i's; rows: [M] int64, the row of logits of every mask. Bits past V are not read as ids.
    """
    num_masks, num_words = bitmask.shape
    vocab_size = logits.shape[1]
    assert num_words == triton.cdiv(vocab_size, 32), f"{num_words} words for {vocab_size} ids"
    assert bitmask.dtype == torch.int32, f"bitmask is {bitmask.dtype}, not int32"
    assert rows.shape == (num_masks,), f"{num_masks} masks, {tuple(rows.shape)} rows"
    assert logits.stride(1) == bitmask.stride(1) == 1, (
        f"strides of logits {logits.stride()}, of bitmask {bitmask.stride()}"
    )
    if num_masks == 0:
        return
    _apply_bitmask_kernel[(num_masks, triton.cdiv(num_words, _WORDS_PER_PROGRAM))](
        logits,
        bitmask,
        rows,
        logits.stride(0),
        bitmask.stride(0),
        vocab_size,
        WORDS=_WORDS_PER_PROGRAM,
        num_warps=4,
    )


@triton.jit
def _apply_bitmask_kernel(
    logits, bitmask, rows, logits_stride, bitmask_stride, vocab_size, WORDS: tl.constexpr
):
    number = tl.program_id(0).to(tl.int64)
    words = tl.program_id(1) * WORDS + tl.arange(0, WORDS)
    bits = tl.arange(0, 32)
    ids = words[:, None] * 32 + bits[None, :]
    masks = tl.load(
        bitmask + number * bitmask_stride + words, mask=words * 32 < vocab_size, other=0
    )
    is_forbidden = (((masks[:, None] >> bits[None, :]) & 1) == 0) & (ids < vocab_size)
    row = logits + tl.load(rows + number) * logits_stride
    # Logits need not be read: what is allowed stays.
    forbidden = tl.full([WORDS, 32], -float("inf"), logits.dtype.element_ty)
    tl.store(row + ids, forbidden, mask=is_forbidden)
