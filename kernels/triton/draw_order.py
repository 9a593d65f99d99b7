"""A row's tokens in falling order of probability, without sorting them.

The key of a token is the bits of its distance below the largest logit, over the temperature: a
float that is not negative, so keys order as distances do, and a smaller key is a likelier token.
Equal keys are ordered by id. What lies before a token in that order is found by searching for a
key, two bits at a time, each with a pass over the row.

Weights are fixed-point integers: their sums are exact, whatever the order of adding.
Shape letters: V vocabulary.
"""

from __future__ import annotations

import triton
import triton.language as tl

MAX_VOCAB = 2**20  # weights of that many tokens fit in an int64
_ONE = tl.constexpr(float(2**42))  # the weight of the likeliest token
_KEY_BITS = tl.constexpr(32)
# Above the key of every token.
LAST_KEY = tl.constexpr(2**32 - 1)


@triton.jit
def keys_of(row, ids, vocab_size, best, temperature):
    """Keys of ids as uint32; those of ids past V are that of an impossible token."""
    logits = tl.load(row + ids, mask=ids < vocab_size, other=-float("inf")).to(tl.float32)
    distance = tl.div_rn(below_best(logits, best), temperature)
    return distance.to(tl.uint32, bitcast=True)


@triton.jit
def below_best(logits, best):
    """How far logits are below the best; 0 where equal, if both are infinite too."""
    is_best = logits == best
    return tl.where(is_best, 0.0, best) - tl.where(is_best, 0.0, logits)


@triton.jit
def weights_of(keys, min_p):
    """exp of minus the distance as an int64 in units of 2 ** -42; 0 where less than min_p."""
    weights = tl.exp(-keys.to(tl.float32, bitcast=True))
    weights = tl.where(weights >= min_p, weights, 0.0)
    return (weights * _ONE).to(tl.int64)


@triton.jit
def last_key_within(
    row,
    vocab_size,
    best,
    temperature,
    min_p,
    limit,
    COUNTS: tl.constexpr,
    LANES: tl.constexpr,
    PER_LANE: tl.constexpr,
):
    """The largest key before which at most limit lies (int64), and how much that is.

    Weight, or tokens where COUNTS. If more than limit lies in the whole row, it is a token's key.
    """
    tile = tl.arange(0, LANES)[:, None] * PER_LANE + tl.arange(0, PER_LANE)[None, :]
    key = tl.full([], 0, tl.uint32)
    before = tl.full([], 0, tl.int64)
    one = tl.full([], 1, tl.uint32)
    for known_bits in range(0, _KEY_BITS, 2):
        step = one << (_KEY_BITS - 2 - known_bits)
        key_1 = key + step
        key_2 = key_1 + step
        key_3 = key_2 + step
        sums_1 = tl.zeros([LANES], dtype=tl.int64)
        sums_2 = tl.zeros([LANES], dtype=tl.int64)
        sums_3 = tl.zeros([LANES], dtype=tl.int64)
        for first in range(0, vocab_size, LANES * PER_LANE):
            ids = first + tile
            keys = keys_of(row, ids, vocab_size, best, temperature)
            if COUNTS:
                amounts = (ids < vocab_size).to(tl.int64)
            else:
                amounts = weights_of(keys, min_p)
            sums_1 += tl.sum(tl.where(keys < key_1, amounts, 0), 1)
            sums_2 += tl.sum(tl.where(keys < key_2, amounts, 0), 1)
            sums_3 += tl.sum(tl.where(keys < key_3, amounts, 0), 1)
        before_1, before_2, before_3 = tl.sum(sums_1, 0), tl.sum(sums_2, 0), tl.sum(sums_3, 0)
        if before_3 <= limit:
            key = key_3
            before = before_3
        elif before_2 <= limit:
            key = key_2
            before = before_2
        elif before_1 <= limit:
            key = key_1
            before = before_1
    return key, before


@triton.jit
def weight_up_to(
    row,
    vocab_size,
    best,
    temperature,
    min_p,
    key,
    num_equal,
    LANES: tl.constexpr,
    PER_LANE: tl.constexpr,
):
    """Weight of all tokens before key, and of num_equal with that key."""
    tile = tl.arange(0, LANES)[:, None] * PER_LANE + tl.arange(0, PER_LANE)[None, :]
    sums = tl.zeros([LANES], dtype=tl.int64)
    for first in range(0, vocab_size, LANES * PER_LANE):
        keys = keys_of(row, first + tile, vocab_size, best, temperature)
        sums += tl.sum(tl.where(keys < key, weights_of(keys, min_p), 0), 1)
    return tl.sum(sums, 0) + num_equal * weights_of(key, min_p)


@triton.jit
def nth_id_with_key(
    row, vocab_size, best, temperature, key, number, LANES: tl.constexpr, PER_LANE: tl.constexpr
):
    """The id of the token with that key before which number others have it."""
    tile = tl.arange(0, LANES * PER_LANE)
    seen = tl.full([], 0, tl.int64)
    found = tl.full([], 0, tl.int64)
    for first in range(0, vocab_size, LANES * PER_LANE):
        ids = first + tile
        keys = keys_of(row, ids, vocab_size, best, temperature)
        has_key = ((keys == key) & (ids < vocab_size)).to(tl.int32)
        num_here = tl.sum(has_key, 0).to(tl.int64)
        if (seen <= number) & (number < seen + num_here):
            rank = seen + tl.cumsum(has_key, 0) - 1
            found = tl.sum(tl.where((has_key != 0) & (rank == number), ids, 0), 0).to(tl.int64)
        seen += num_here
    return found


@triton.jit
def id_at_weight(
    row, vocab_size, best, temperature, min_p, target, LANES: tl.constexpr, PER_LANE: tl.constexpr
):
    """The first id, in order of ids, up to which more than target weighs."""
    tile = tl.arange(0, LANES * PER_LANE)
    seen = tl.full([], 0, tl.int64)
    found = tl.full([], 0, tl.int64)
    for first in range(0, vocab_size, LANES * PER_LANE):
        keys = keys_of(row, first + tile, vocab_size, best, temperature)
        weights = weights_of(keys, min_p)
        here = tl.sum(weights, 0)
        if (seen <= target) & (target < seen + here):
            is_before = seen + tl.cumsum(weights, 0) <= target
            found = first + tl.sum(is_before.to(tl.int32), 0).to(tl.int64)
        seen += here
    return found
