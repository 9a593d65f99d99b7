"""Admission by a forecast that is learnt: will the pool hold, at every moment to come?

For each running request the lengths of finished ones tell how likely it still runs t steps from
now; then it holds its tokens and t more, else they are free. The sum over all requests has a mean
and a spread at each t, and a newcomer is let in if mean + z * spread stays within the pool at all
of them. z is the learnt quantile: it rises at each retraction and falls at each output that ended
without one, by steps that balance at the target rate.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .admission import prompt_tokens_left
from .length_history import LengthHistory, longer_than
from .request import Request

STEP_OF_Z = 0.5
MIN_Z, MAX_Z = -1.0, 4.0

# Spans of time looked at begin at 0, 1, 2, 3, 4, 6, 8, 12, ... steps from now. A request counts
# with the most tokens it may hold in a span, if it still runs at its beginning.
_HORIZON: NDArray[np.float64] = np.unique(
    np.concatenate([[0.0], np.round(2.0 ** np.arange(0, 17.5, 0.5))])
)
_LAST: NDArray[np.float64] = np.append(_HORIZON[1:] - 1.0, _HORIZON[-1])  # step of each span


class LearntForecast:
    """The learnt rule; target_rate is the share of outputs that may be retracted on the way."""

    def __init__(self, target_rate: float) -> None:
        self._target_rate = target_rate
        self._z = 1.0
        self._history = LengthHistory()
        self._mean = np.zeros_like(_HORIZON)  # tokens held in each span beyond those held now
        self._variance = np.zeros_like(_HORIZON)
        self._ratio = 1.0

    @property
    def ratio(self) -> float:
        """Mean share of the asked-for output that active requests are expected to take."""
        return self._ratio

    def begin_step(self, active: Sequence[Request]) -> None:
        self._mean[:] = 0.0
        self._variance[:] = 0.0
        self._ratio = 1.0
        if not active:
            return
        shares = self._still_running(active)
        held, prompt_left = np.array([_held(one) for one in active], dtype=np.float64).T
        self._book(shares, held, _growth(active, prompt_left))
        asked = sum(one.num_new_tokens_left for one in active)
        if asked:
            self._ratio = min(float(np.trapezoid(shares, _HORIZON).sum()) / asked, 1.0)

    def fits(self, newcomer: Request, prompt_tokens: int, room: int) -> bool:
        (share,) = self._still_running([newcomer])
        (tokens,) = _growth([newcomer], np.array([float(prompt_tokens)]))
        mean = self._mean + share * tokens
        variance = self._variance + share * (1.0 - share) * tokens**2
        mean[0] = max(mean[0], self._mean[0] + prompt_tokens)  # needed whatever happens
        return bool((mean + self._z * np.sqrt(variance) <= room).all())

    def admitted(self, newcomer: Request, prompt_tokens: int) -> None:
        shares = self._still_running([newcomer])
        self._book(shares, np.zeros(1), _growth([newcomer], np.array([float(prompt_tokens)])))

    def step_went_well(self) -> None:
        pass

    def retracted(self, request: Request, survivors: Sequence[Request]) -> None:
        self._z = min(MAX_Z, self._z + STEP_OF_Z * (1.0 - self._target_rate))

    def finished(self, request: Request) -> None:
        self._z = max(MIN_Z, self._z - STEP_OF_Z * self._target_rate)
        if not request.params.ignore_eos:
            self._history.add(
                request.message.namespace, request.max_new_tokens, len(request.output_ids)
            )

    def reset(self) -> None:
        pass  # what was learnt of lengths holds for the next load too

    def _still_running(self, requests: Sequence[Request]) -> NDArray[np.float64]:
        """Return how likely each request still runs at each moment of the horizon: [R, T]."""
        left = np.array([one.num_new_tokens_left for one in requests], dtype=np.float64)[:, None]
        by_curve: dict[int, tuple[NDArray[np.float64], list[int]]] = {}
        for index, one in enumerate(requests):
            if not one.params.ignore_eos:
                curve = self._history.survival(one.message.namespace, one.max_new_tokens)
                by_curve.setdefault(id(curve), (curve, []))[1].append(index)
        shares = np.ones((len(requests), len(_HORIZON)))
        for curve, places in by_curve.values():
            done = np.array([len(requests[index].output_ids) for index in places])
            share = longer_than(curve, done[:, None] + _HORIZON)
            now = share[:, :1]
            # Beyond all that was seen nothing is known but the limit.
            shares[places] = np.where(now > 1e-3, share / np.maximum(now, 1e-3), 1.0)
        shares[left <= _HORIZON] = 0.0
        return shares

    def _book(
        self,
        shares: NDArray[np.float64],
        held: NDArray[np.float64],
        growth: NDArray[np.float64],
    ) -> None:
        tokens = held[:, None] + growth
        self._mean += (shares * tokens).sum(axis=0) - held.sum()
        self._variance += (shares * (1.0 - shares) * tokens**2).sum(axis=0)


def _growth(requests: Sequence[Request], prompt_left: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the tokens that each request takes by the end of each span if it lasts: [R, T]."""
    left = np.array([one.num_new_tokens_left for one in requests], dtype=np.float64)
    return prompt_left[:, None] + np.minimum(_LAST, left[:, None])


def _held(request: Request) -> tuple[int, int]:
    """Return the tokens that only request holds, and its prompt tokens without slots."""
    assert request.lease is not None, request.rid
    return request.lease.num_allocated - request.lease.num_matched, prompt_tokens_left(request)
