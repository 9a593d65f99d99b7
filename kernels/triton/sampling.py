"""Drawing a token per row: temperature, top_k, top_p, min_p, inverse CDF; one program per row.

The random number is a hash of (seed, position), so a draw depends on nothing else in the batch.
Nothing is sorted: see draw_order.py. Greedy rows cost one pass over the vocabulary.
Mixer: the finalizer of splitmix64 (Steele, Lea, Flood, 2014). Shape letters: R rows, V vocabulary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from .draw_order import (
    LAST_KEY,
    MAX_VOCAB,
    below_best,
    id_at_weight,
    last_key_within,
    nth_id_with_key,
    weight_up_to,
    weights_of,
)

# A program as large as can be: most steps have fewer rows than a GPU has multiprocessors.
_LANES, _PER_LANE, _NUM_WARPS = 1024, 4, 32


@dataclass(frozen=True, slots=True)
class SamplingTensors:
    """Parameters of R rows; temperature 0 is greedy, top_k at least V and top_p 1 keep all."""

    temperature: torch.Tensor  # f32
    top_k: torch.Tensor  # int32, at least 1
    top_p: torch.Tensor  # f32, above 0
    min_p: torch.Tensor  # f32
    seed: torch.Tensor  # int64
    position: torch.Tensor  # int64


@dataclass(frozen=True, slots=True)
class DrawnTokens:
    """Of R rows; the id of a row with a NaN means nothing."""

    ids: torch.Tensor  # int64
    has_nan: torch.Tensor  # bool
    logprobs: torch.Tensor | None  # f32: of ids, in the distribution of the logits as they are


def sample(
    logits: torch.Tensor,
    params: SamplingTensors,
    with_logprobs: bool = False,
    floor: float = -math.inf,
) -> DrawnTokens:
    """Draw from logits [R, V], f32, f16 or bf16, the logits of a row contiguous; not changed.

    Top_k keeps exactly k tokens (lower ids first among equals), top_p the smallest set of the most
    likely of them whose share reaches top_p, min_p those with at least min_p times the largest
    probability. Tokens less likely than the likeliest by 2 ** -42 are never drawn. Where no logit
    is above floor the lowest id of the largest is taken: id 0 where all are minus infinity.
    """
    num_rows, vocab_size = logits.shape
    assert logits.stride(1) == 1, f"logits have strides {logits.stride()}"
    if vocab_size > MAX_VOCAB:
        raise ValueError(
            f"{vocab_size} tokens are not supported by the triton sampler, at most {MAX_VOCAB}"
        )
    tensors = {
        "temperature": (params.temperature, torch.float32),
        "top_k": (params.top_k, torch.int32),
        "top_p": (params.top_p, torch.float32),
        "min_p": (params.min_p, torch.float32),
        "seed": (params.seed, torch.int64),
        "position": (params.position, torch.int64),
    }
    for name, (tensor, dtype) in tensors.items():
        assert tensor.shape == (num_rows,) and tensor.is_contiguous() and tensor.dtype == dtype, (
            f"{name} is {tensor.dtype} of shape {tuple(tensor.shape)}, not {dtype} of {num_rows}"
        )
    ids = torch.empty(num_rows, dtype=torch.int64, device=logits.device)
    has_nan = torch.empty(num_rows, dtype=torch.bool, device=logits.device)
    logprobs = torch.empty_like(params.temperature) if with_logprobs else None
    if num_rows == 0:
        return DrawnTokens(ids, has_nan, logprobs)
    _sample_kernel[(num_rows,)](
        logits,
        params.temperature,
        params.top_k,
        params.top_p,
        params.min_p,
        params.seed,
        params.position,
        ids,
        has_nan,
        logprobs,
        logits.stride(0),
        vocab_size,
        floor,
        HAS_LOGPROBS=with_logprobs,
        LANES=_LANES,
        PER_LANE=_PER_LANE,
        num_warps=_NUM_WARPS,
    )
    return DrawnTokens(ids, has_nan, logprobs)


@triton.jit
def _sample_kernel(
    logits,
    temperatures,
    top_ks,
    top_ps,
    min_ps,
    seeds,
    positions,
    ids,
    nan_flags,
    logprobs,
    logits_stride,
    vocab_size,
    floor,
    HAS_LOGPROBS: tl.constexpr,
    LANES: tl.constexpr,
    PER_LANE: tl.constexpr,
):
    number = tl.program_id(0).to(tl.int64)
    row = logits + number * logits_stride
    best, chosen, has_nan = _best_of(row, vocab_size, LANES, PER_LANE)
    temperature = tl.load(temperatures + number)
    if (temperature > 0.0) & (best > floor) & (has_nan == 0):
        chosen = _drawn_id(
            row,
            vocab_size,
            best,
            temperature,
            tl.load(top_ks + number),
            tl.load(top_ps + number),
            tl.load(min_ps + number),
            _uniform(tl.load(seeds + number), tl.load(positions + number)),
            LANES,
            PER_LANE,
        )
    tl.store(ids + number, chosen)
    tl.store(nan_flags + number, has_nan != 0)
    if HAS_LOGPROBS:
        logprob = _logprob_of(row, vocab_size, best, chosen, LANES, PER_LANE)
        tl.store(logprobs + number, logprob)


@triton.jit
def _best_of(row, vocab_size, LANES: tl.constexpr, PER_LANE: tl.constexpr):
    """The largest logit, its lowest id as int64, and 1 if any is NaN."""
    tile = tl.arange(0, LANES * PER_LANE)
    lane_best = tl.full([LANES * PER_LANE], -float("inf"), tl.float32)
    lane_ids = tile
    lane_nan = tl.zeros([LANES * PER_LANE], dtype=tl.int32)
    for first in range(0, vocab_size, LANES * PER_LANE):
        ids = first + tile
        values = tl.load(row + ids, mask=ids < vocab_size, other=-float("inf")).to(tl.float32)
        is_better = values > lane_best
        lane_best = tl.where(is_better, values, lane_best)
        lane_ids = tl.where(is_better, ids, lane_ids)
        lane_nan |= (values != values).to(tl.int32)
    best = tl.max(lane_best, 0)
    best_id = tl.min(tl.where(lane_best == best, lane_ids, vocab_size), 0)
    return best, best_id.to(tl.int64), tl.max(lane_nan, 0)


@triton.jit
def _drawn_id(
    row,
    vocab_size,
    best,
    temperature,
    top_k,
    top_p,
    min_p,
    u,
    LANES: tl.constexpr,
    PER_LANE: tl.constexpr,
):
    """The token at place u of the distribution: by falling probability if it is cut, else by id."""
    # Kept are all tokens before key cut, and num_equal of those with it.
    cut = tl.full([], LAST_KEY, tl.uint32)
    num_equal = tl.full([], 0, tl.int64)
    is_cut = (top_k < vocab_size) | (top_p < 1.0)
    if top_k < vocab_size:
        cut, before = last_key_within(
            row, vocab_size, best, temperature, 0.0, top_k - 1, True, LANES, PER_LANE
        )
        num_equal = top_k - before
    if top_p < 1.0:
        kept = weight_up_to(
            row, vocab_size, best, temperature, 0.0, cut, num_equal, LANES, PER_LANE
        )
        # Kept is what less than the wanted share lies before.
        limit = tl.ceil(top_p * kept.to(tl.float64)).to(tl.int64) - 1
        limit = tl.minimum(tl.maximum(limit, 0), kept - 1)
        nucleus_cut, before = last_key_within(
            row, vocab_size, best, temperature, 0.0, limit, False, LANES, PER_LANE
        )
        num_needed = (limit - before) // tl.maximum(weights_of(nucleus_cut, 0.0), 1) + 1
        num_equal = tl.where(nucleus_cut == cut, tl.minimum(num_equal, num_needed), num_needed)
        cut = nucleus_cut
    total = weight_up_to(row, vocab_size, best, temperature, min_p, cut, num_equal, LANES, PER_LANE)
    target = tl.minimum((u * total.to(tl.float64)).to(tl.int64), total - 1)
    if is_cut:
        key, before = last_key_within(
            row, vocab_size, best, temperature, min_p, target, False, LANES, PER_LANE
        )
        place = (target - before) // tl.maximum(weights_of(key, min_p), 1)
        chosen = nth_id_with_key(row, vocab_size, best, temperature, key, place, LANES, PER_LANE)
    else:
        chosen = id_at_weight(row, vocab_size, best, temperature, min_p, target, LANES, PER_LANE)
    return chosen


@triton.jit
def _logprob_of(row, vocab_size, best, chosen, LANES: tl.constexpr, PER_LANE: tl.constexpr):
    """The log-probability of token chosen; equal shares among infinite logits."""
    tile = tl.arange(0, LANES * PER_LANE)
    sums = tl.zeros([LANES * PER_LANE], dtype=tl.float32)
    for first in range(0, vocab_size, LANES * PER_LANE):
        ids = first + tile
        values = tl.load(row + ids, mask=ids < vocab_size, other=-float("inf")).to(tl.float32)
        weights = tl.exp(-below_best(values, best))
        sums += tl.where(ids < vocab_size, weights, 0.0)
    value = tl.load(row + chosen).to(tl.float32)
    logprob = -below_best(value, best) - tl.log(tl.sum(sums, 0))
    return tl.where(best == -float("inf"), best, logprob)


@triton.jit
def _uniform(seed, position):
    """A float64 in [0, 1): 53 bits of a twice mixed counter."""
    mixed = _mix(_mix(seed.to(tl.uint64, bitcast=True)) + position.to(tl.uint64, bitcast=True))
    return (mixed >> 11).to(tl.float64) * 1.1102230246251565e-16  # 2 ** -53


@triton.jit
def _mix(value):
    z = value + tl.full([], 0x9E3779B97F4A7C15, tl.uint64)
    z = (z ^ (z >> 30)) * tl.full([], 0xBF58476D1CE4E5B9, tl.uint64)
    z = (z ^ (z >> 27)) * tl.full([], 0x94D049BB133111EB, tl.uint64)
    return z ^ (z >> 31)
