"""How long outputs turn out to be, learnt from those that have ended.

Histograms per kind of request. Kinds are told apart by namespace and by the order of magnitude of
the limit that was asked for. Old outputs fade, and a kind seen rarely leans on all requests with
such a limit. What follows for those that still run is said in survival.py.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

MAX_KINDS = 1024  # the least recently used kind is forgotten first
FADE = 0.995  # weight of an output per later one of its kind: about the last 200 count
PRIOR_WEIGHT = 8.0  # outputs that the wider histogram counts for

# Upper edges of the bins, about a third apart: 1, 2, 3, 4, 6, 8, 11, ... 2**20.
EDGES: NDArray[np.float64] = np.unique(np.round(2.0 ** np.arange(0, 20.5, 0.42)))

ENDED, PASSED = 0, 1  # the rows of what is known of a kind

_NONE_ENDED: NDArray[np.float64] = np.zeros((2, len(EDGES)))
_REFRESH = 32  # outputs between two refreshes of what leans on the wider histograms


Kind: TypeAlias = tuple[str | None, int]


def kind_of(namespace: str | None, max_new_tokens: int) -> Kind:
    """Return the kind of a request: its namespace and the bits of its limit."""
    return namespace, max_new_tokens.bit_length()


class LengthHistory:
    """What is known of output lengths, by kind and in all.

    Of a kind that is [2, bins]: how many outputs ended in each bin, and how many that ended in none
    passed it: their limit cut them, so that nobody knows where they would have ended.
    """

    def __init__(self) -> None:
        self._by_kind: OrderedDict[Kind, NDArray[np.float64]] = OrderedDict()
        self._by_limit: dict[int, NDArray[np.float64]] = {}
        self._with_prior: dict[Kind, NDArray[np.float64]] = {}
        self._num_added = 0

    def add(self, kind: Kind, num_output_tokens: int, was_cut: bool = False) -> None:
        """Learn that a request of this kind ended by itself after num_output_tokens, or was cut."""
        _, limit = kind
        num_tokens = min(max(num_output_tokens, 1), int(EDGES[-1]))
        place = int(np.searchsorted(EDGES, num_tokens))
        for counts in (self._own_counts(kind), self._limit_counts(limit)):
            counts *= FADE
            if was_cut:
                lower = EDGES[place - 1] if place else 0.0
                counts[PASSED, :place] += 1.0
                counts[PASSED, place] += (num_tokens - lower) / (EDGES[place] - lower)
            else:
                counts[ENDED, place] += 1.0
        self._num_added += 1
        if self._num_added % _REFRESH == 0:
            self._with_prior.clear()  # those that lean on all of a limit have moved too
        else:
            self._with_prior.pop(kind, None)

    def counts(self, kind: Kind | None) -> NDArray[np.float64]:
        """Return what is known of a kind, the prior included; do not change it.

        None stands for outputs that never end before their limit.
        """
        if kind is None:
            return _NONE_ENDED
        counts = self._with_prior.get(kind)
        if counts is None:
            counts = self._with_prior[kind] = self._combined(kind)
            if len(self._with_prior) > 2 * MAX_KINDS:
                self._with_prior.clear()
        return counts

    def _combined(self, kind: Kind) -> NDArray[np.float64]:
        # With nothing known, any length up to the largest limit is as likely as any other.
        counts = np.zeros((2, len(EDGES)))
        prior = np.diff(np.minimum(EDGES, float(2 ** kind[1])), prepend=0.0)
        counts[ENDED] = PRIOR_WEIGHT * prior / prior.sum()
        wide = self._by_limit.get(kind[1])
        if wide is not None:
            counts += wide
            counts *= PRIOR_WEIGHT / max(float(num_outputs(counts)), PRIOR_WEIGHT)
        own = self._by_kind.get(kind)
        return counts if own is None else counts + own

    def _own_counts(self, kind: Kind) -> NDArray[np.float64]:
        counts = self._by_kind.get(kind)
        if counts is None:
            counts = self._by_kind[kind] = np.zeros((2, len(EDGES)))
            if len(self._by_kind) > MAX_KINDS:
                self._by_kind.popitem(last=False)
        self._by_kind.move_to_end(kind)
        return counts

    def _limit_counts(self, limit: int) -> NDArray[np.float64]:
        return self._by_limit.setdefault(limit, np.zeros((2, len(EDGES))))


def num_outputs(counts: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return how many outputs counts rests on, the prior included: [..., 2, bins] to [...]."""
    known: NDArray[np.float64] = counts[..., ENDED, :].sum(axis=-1) + counts[..., PASSED, 0]
    return known
