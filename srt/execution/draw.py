"""One random draw from one row of logits: temperature, top_k, top_p, min_p, inverse CDF.

The random number is a hash of (seed, position), so that it needs no state and no order of rows.
Shape letters: V vocabulary, K candidates.
"""

from __future__ import annotations

import math

import torch

from ..sampling_params import SamplingParams
from .top_candidates import top_candidates

_MASK = (1 << 64) - 1
# How far below the largest (scaled) logit a nucleus is looked for before the whole row is sorted:
# most end within a few dozen tokens, and sorting all of a large vocabulary costs milliseconds.
_NUCLEUS_DEPTHS = (4.0, 8.0, 12.0)


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) that depends on (seed, position) alone: 53 bits of a twice mixed counter.

    Mixer: the finalizer of splitmix64 (Steele, Lea, Flood, 2014).
    """
    return (_mix(_mix(seed) + position) >> 11) * 2.0**-53


def draw(logits: torch.Tensor, params: SamplingParams, u: float) -> int:
    """The token at place u of the distribution that params make of logits.

    logits: [V] float32, without NaN, some above -inf.

    top_k keeps exactly k tokens (lower ids first among equals), top_p the smallest set of the most
    likely of them whose share reaches top_p, min_p those with at least min_p times the largest
    probability.
    """
    scaled = _scaled(logits, params.temperature)
    if params.top_k is None and params.top_p >= 1.0:
        weights = scaled.exp()
        if params.min_p > 0.0:
            weights = weights.masked_fill(weights < params.min_p, 0.0)
        return _invert_cdf(weights, u)
    weights, ids = _nucleus(scaled, params.top_k, params.top_p)
    if params.min_p > 0.0:
        weights = weights[weights >= params.min_p * weights[0]]
    return int(ids[_invert_cdf(weights, u)])


def _scaled(logits: torch.Tensor, temperature: float) -> torch.Tensor:
    """Logits less the largest, over the temperature: at most 0, so nothing overflows."""
    best = logits.max()
    if best == math.inf:
        return torch.zeros_like(logits).masked_fill(logits != math.inf, -math.inf)
    return (logits - best) / temperature


def _nucleus(
    scaled: torch.Tensor, top_k: int | None, top_p: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights (float64, falling) and ids of the tokens that top_k and top_p keep; both [K]."""
    if top_k is not None and top_k < scaled.shape[0]:
        values, ids = top_candidates(scaled, top_k)
        weights = values.double().exp()
        return _cut(weights, ids, top_p * float(weights.sum()))
    wanted = top_p * float(scaled.exp().sum(dtype=torch.float64))
    for depth in _NUCLEUS_DEPTHS:
        ids = (scaled >= -depth).nonzero().flatten()
        weights = scaled[ids].double().exp()
        # What is left out is less likely than all of these, so a share that is reached holds the
        # nucleus.
        if float(weights.sum()) >= wanted:
            weights, order = torch.sort(weights, descending=True, stable=True)
            return _cut(weights, ids[order], wanted)
    weights, ids = torch.sort(scaled.double().exp(), descending=True, stable=True)
    return _cut(weights, ids, wanted)


def _cut(
    weights: torch.Tensor, ids: torch.Tensor, wanted: float
) -> tuple[torch.Tensor, torch.Tensor]:
    before = weights.cumsum(0) - weights
    num_kept = max(1, int((before < wanted).sum()))
    return weights[:num_kept], ids[:num_kept]


def _invert_cdf(weights: torch.Tensor, u: float) -> int:
    """The first index whose cumulated weight exceeds u times the sum; never one of weight 0."""
    cdf = weights.cumsum(0, dtype=torch.float64)
    total = float(cdf[-1])
    # u * total may round up to total, which no entry exceeds.
    target = min(u * total, math.nextafter(total, 0.0))
    return int(torch.searchsorted(cdf, target, right=True))


def _mix(value: int) -> int:
    z = (value + 0x9E3779B97F4A7C15) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)
