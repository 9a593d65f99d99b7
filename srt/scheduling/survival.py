"""How likely outputs go on, from those that have ended and those that still run.

Of the outputs of a burst the short ones end first: taken alone, they would say that all are short.
Whoever still runs, or was cut by its limit, has passed the bins below its length, and counts there
as one that might have ended and did not. So where clients ask for exactly what they get, requests
are expected to run to their limits. Source: the product-limit estimate (Kaplan and Meier, 1958).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .length_history import EDGES, ENDED, PASSED

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_NUM_BINS = len(EDGES)
_LEAST_SHARE = 1e-3  # where fewer get so far nothing is known of how they go on


class SurvivalCurves:
    """One curve for each of several kinds: the share of outputs longer than any length."""

    def __init__(self) -> None:
        self._table = _BinTable(4_096)
        self._curves: Floats = np.ones((1, _NUM_BINS + 1))

    def fit(self, counts: Floats, kinds: Ints, done: Ints) -> None:
        """Make the curves anew.

        counts: [K, 2, bins], see LengthHistory. kinds and done: [R], of each running request the
        row of counts and its tokens so far.
        """
        num_kinds = len(counts)
        bins, fractions = self._table.find(done)
        places = bins + kinds * _NUM_BINS
        size = num_kinds * _NUM_BINS
        running = np.bincount(places, minlength=size)
        in_part = np.bincount(places, fractions, minlength=size)
        # A request that runs has come through all bins below its own, and in part through that.
        ended = counts[:, ENDED]
        at_risk = _from_here_on(ended + running.reshape(num_kinds, -1))
        at_risk += (in_part - running).reshape(num_kinds, -1)
        at_risk += counts[:, PASSED]
        ending = ended / np.maximum(at_risk, 1e-9)
        self._curves = np.ones((num_kinds, _NUM_BINS + 1))  # a column for length 0
        np.cumprod(np.maximum(1.0 - ending, 0.0), axis=1, out=self._curves[:, 1:])

    def still_running(self, kinds: Ints, done: Ints, horizon: Ints) -> Floats:
        """Return how likely each request still runs after horizon more tokens: [R, T].

        kinds and done as in fit; horizon: [T], beginning with 0. Between edges a curve is a
        straight line; where it says nothing any more, a request goes on.
        """
        bins, fractions = self._table.find(done[:, None] + horizon)
        bins += (kinds * (_NUM_BINS + 1))[:, None]
        lower = self._curves.take(bins)
        bins += 1
        shares = self._curves.take(bins)
        shares -= lower
        shares *= fractions
        shares += lower
        now = shares[:, :1].copy()
        unknown = now[:, 0] <= _LEAST_SHARE
        shares /= np.maximum(now, _LEAST_SHARE)
        if unknown.any():
            shares[unknown] = 1.0
        return shares


class _BinTable:
    """The bin of each length and how far into it the length goes; grown when it must, to EDGES."""

    def __init__(self, size: int) -> None:
        self._grow(size)

    def find(self, lengths: Ints) -> tuple[Ints, Floats]:
        """Return bins, and the shares of them that lie within the lengths: both as lengths."""
        longest = int(lengths.max(initial=0))
        if longest >= len(self._bins):
            most = int(EDGES[-1])
            self._grow(min(2 * longest, most) + 1)
            lengths = np.minimum(lengths, most)
        return self._bins.take(lengths), self._fractions.take(lengths)

    def _grow(self, size: int) -> None:
        lengths = np.arange(size)
        self._bins: Ints = np.searchsorted(EDGES, lengths).astype(np.int64)
        lower = np.concatenate([[0.0], EDGES])[self._bins]
        self._fractions: Floats = (lengths - lower) / (EDGES[self._bins] - lower)


def _from_here_on(counts: Floats) -> Floats:
    """Return for each bin the sum of it and all later ones."""
    sums: Floats = np.cumsum(counts[:, ::-1], axis=1)[:, ::-1]
    return sums
