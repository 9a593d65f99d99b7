"""Penalties, biases and suppression of single logits, from one flat list of places.

The list holds only tokens that something happens to, so no matrix of counts over the vocabulary is
needed. Every product and sum is rounded by itself, as on the host: a fused one would draw another
token now and then.

Shape letters: R rows, V vocabulary, N places.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

_PLACES_PER_PROGRAM = 256


def apply_edits(
    logits: torch.Tensor,
    places: torch.Tensor,
    repetition: torch.Tensor,
    penalty: torch.Tensor,
    bias: torch.Tensor,
    suppressed: torch.Tensor,
    *,
    floor: float,
) -> None:
    """Change logits at places, in place: repetition penalty, then penalty and bias.

    logits: [R, V] f32, contiguous. places: [N] int64, row * V + id, each once. repetition divides
    what is above 0 and multiplies the rest; penalty is subtracted, bias added: [N] f32. suppressed:
    [N] int32, where not 0 the logit becomes minus infinity. Others that are at most floor stay.
    """
    num_places = places.shape[0]
    assert logits.dtype == torch.float32 and logits.is_contiguous(), (
        f"logits are {logits.dtype} with strides {logits.stride()}"
    )
    assert places.dtype == torch.int64, f"places are {places.dtype}, not int64"
    amounts = {
        "repetition": (repetition, torch.float32),
        "penalty": (penalty, torch.float32),
        "bias": (bias, torch.float32),
        "suppressed": (suppressed, torch.int32),
    }
    for name, (tensor, dtype) in amounts.items():
        assert tensor.shape == (num_places,) and tensor.dtype == dtype, (
            f"{name} is {tensor.dtype} of shape {tuple(tensor.shape)}, not {dtype} of {num_places}"
        )
    if num_places == 0:
        return
    _apply_edits_kernel[(triton.cdiv(num_places, _PLACES_PER_PROGRAM),)](
        logits,
        places,
        repetition,
        penalty,
        bias,
        suppressed,
        num_places,
        floor,
        BLOCK=_PLACES_PER_PROGRAM,
        num_warps=4,
        enable_fp_fusion=False,
    )


@triton.jit
def _apply_edits_kernel(
    logits, places, repetition, penalty, bias, suppressed, num_places, floor, BLOCK: tl.constexpr
):
    numbers = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    is_place = numbers < num_places
    spots = logits + tl.load(places + numbers, mask=is_place, other=0)
    before = tl.load(spots, mask=is_place, other=0.0)
    stays = before <= floor
    factor = tl.load(repetition + numbers, mask=is_place, other=1.0)
    after = tl.where(stays, 0.0, before)  # not to leave the range of a float
    after = tl.where(after > 0.0, tl.div_rn(after, factor), after * factor)
    after = after - tl.load(penalty + numbers, mask=is_place, other=0.0)
    after = after + tl.load(bias + numbers, mask=is_place, other=0.0)
    after = tl.where(stays, before, after)
    is_suppressed = tl.load(suppressed + numbers, mask=is_place, other=0) != 0
    tl.store(spots, tl.where(is_suppressed, -float("inf"), after), mask=is_place)
