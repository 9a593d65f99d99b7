"""How much of the pool requests will hold, at moments from now to their ends."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .survival import Floats, Ints

# Spans of time looked at begin at 0, 1, 2, 3, 4, 6, 8, 11, ... steps from now. A request counts
# with the most tokens it may hold in a span, if it still runs at its beginning.
HORIZON: Ints = np.unique(np.round(2.0 ** np.arange(-1, 17.5, 0.5))).astype(np.int64)
LAST: Floats = np.append(HORIZON[1:] - 1.0, HORIZON[-1])  # step of each span


@dataclass(slots=True)
class PoolForecast:
    """Sums over requests for each span: [T], doubt for each kind of request too: [K, T].

    mean: of the tokens held, less held_now. variance: of what each request's own end adds to it.
    doubt: of the deviations of a kind's requests, which err together if their curve is wrong.
    """

    mean: Floats
    variance: Floats
    doubt: Floats

    @classmethod
    def of(
        cls, shares: Floats, tokens: Floats, kinds: Ints, num_kinds: int, held_now: float
    ) -> PoolForecast:
        """Add up requests that run in each span with a probability, and hold tokens if they do.

        shares and tokens: [R, S], of the first S spans; nobody runs in later ones. kinds: [R].
        """
        num_spans = shares.shape[1]
        mean, variance = np.zeros((2, len(HORIZON)))
        doubt = np.zeros((num_kinds, len(HORIZON)))
        mean[:num_spans] = np.einsum("rt,rt->t", shares, tokens)
        mean -= held_now
        deviations = _deviations(shares, tokens)
        variance[:num_spans] = np.einsum("rt,rt->t", deviations, deviations)
        if num_kinds == 1:
            doubt[0, :num_spans] = deviations.sum(axis=0)
        else:
            is_of_kind = np.arange(num_kinds)[:, None] == kinds
            doubt[:, :num_spans] = is_of_kind.astype(np.float64) @ deviations
        return cls(mean, variance, doubt)

    def plus(self, shares: Floats, tokens: Floats, kind: int) -> PoolForecast:
        """Return a forecast with one more request in it; shares and tokens: [T]."""
        deviations = _deviations(shares, tokens)
        num_new = max(kind + 1 - len(self.doubt), 0)
        doubt = np.concatenate([self.doubt, np.zeros((num_new, len(HORIZON)))])
        doubt[kind] += deviations
        return PoolForecast(
            self.mean + shares * tokens, self.variance + deviations * deviations, doubt
        )

    def bound(self, z: float, num_known: Floats) -> Floats:
        """Return mean + z deviations, [T]; num_known: [K], the outputs that a curve rests on."""
        variance = self.variance + (self.doubt * self.doubt / num_known[:, None]).sum(axis=0)
        found: Floats = self.mean + z * np.sqrt(variance)
        return found


def _deviations(shares: Floats, tokens: Floats) -> Floats:
    """Return the standard deviations of what each holds."""
    found: Floats = np.sqrt(shares * (1.0 - shares)) * tokens
    return found
