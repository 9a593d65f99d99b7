"""How long outputs turn out to be, learnt from those that have ended.

A survival curve per kind of request: the share of outputs longer than n tokens. Kinds are told
apart by namespace and by the order of magnitude of the limit that was asked for. Old outputs fade,
and a kind seen rarely leans on all requests with such a limit.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

MAX_KINDS = 1024  # the least recently used kind is forgotten first
FADE = 0.995  # weight of an output per later one of its kind: about the last 200 count
PRIOR_WEIGHT = 8.0  # outputs that the wider curve counts for

_REFRESH = 32  # outputs between two refreshes of all curves

# Upper edges of the bins, about a third apart: 1, 2, 3, 4, 6, 8, 11, ... 2**20.
_EDGES: NDArray[np.float64] = np.unique(np.round(2.0 ** np.arange(0, 20.5, 0.42)))


Kind: TypeAlias = tuple[str | None, int]


def kind_of(namespace: str | None, max_new_tokens: int) -> Kind:
    """Return the kind of a request: its namespace and the bits of its limit."""
    return namespace, max_new_tokens.bit_length()


class LengthHistory:
    """Histograms of output lengths, by kind and in all."""

    def __init__(self) -> None:
        self._by_kind: OrderedDict[Kind, NDArray[np.float64]] = OrderedDict()
        self._by_limit: dict[int, NDArray[np.float64]] = {}
        self._curves: dict[Kind, NDArray[np.float64]] = {}
        self._num_added = 0

    def add(self, kind: Kind, num_output_tokens: int) -> None:
        """Learn that a request of this kind ended by itself after num_output_tokens."""
        _, limit = kind
        place = int(np.searchsorted(_EDGES, max(num_output_tokens, 1)))
        for counts in (self._counts(kind), self._limit_counts(limit)):
            counts *= FADE
            counts[min(place, len(counts) - 1)] += 1.0
        self._num_added += 1
        if self._num_added % _REFRESH == 0:
            self._curves.clear()  # those that lean on the wider curve have moved too
        else:
            self._curves.pop(kind, None)

    def survival(self, kind: Kind) -> NDArray[np.float64]:
        """Share of outputs of this kind that are longer than each of EDGES; do not change it."""
        curve = self._curves.get(kind)
        if curve is None:
            curve = self._curves[kind] = self._curve(kind)
            if len(self._curves) > 2 * MAX_KINDS:
                self._curves.clear()
        return curve

    def _curve(self, kind: Kind) -> NDArray[np.float64]:
        # With nothing known, any length up to the largest limit is as likely as any other.
        prior = np.diff(np.minimum(_EDGES, float(2 ** kind[1])), prepend=0.0)
        counts = PRIOR_WEIGHT * prior / prior.sum()
        wide = self._by_limit.get(kind[1])
        if wide is not None:
            counts = counts + wide
            counts *= PRIOR_WEIGHT / max(float(counts.sum()), PRIOR_WEIGHT)
        own = self._by_kind.get(kind)
        if own is not None:
            counts = counts + own
        curve: NDArray[np.float64] = 1.0 - np.cumsum(counts) / counts.sum()
        return np.clip(curve, 0.0, 1.0)

    def _counts(self, kind: Kind) -> NDArray[np.float64]:
        counts = self._by_kind.get(kind)
        if counts is None:
            counts = self._by_kind[kind] = np.zeros(len(_EDGES))
            if len(self._by_kind) > MAX_KINDS:
                self._by_kind.popitem(last=False)
        self._by_kind.move_to_end(kind)
        return counts

    def _limit_counts(self, limit: int) -> NDArray[np.float64]:
        return self._by_limit.setdefault(limit, np.zeros(len(_EDGES)))


def longer_than(curve: NDArray[np.float64], lengths: NDArray[np.float64]) -> NDArray[np.float64]:
    """Read a survival curve at any lengths; between edges it is a straight line."""
    return np.interp(lengths, _EDGES, curve, left=1.0)
