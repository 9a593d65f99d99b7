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
from .length_history import Kind, LengthHistory, kind_of, longer_than
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
        self._z = 2.0  # cautious until it has learnt; a low target rate lowers it slowly
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
        left = _left(active)
        span = int(np.searchsorted(_HORIZON, left.max())) + 1  # beyond it nobody runs
        shares = self._still_running(active, left, _HORIZON[:span])
        held = np.array([_held(one) for one in active], dtype=np.float64)
        prompt_left = np.array([prompt_tokens_left(one) for one in active], dtype=np.float64)
        self._book(shares, held, _growth(left, prompt_left, _LAST[:span]))
        asked = float(left.sum())
        if asked:
            expected = float(np.trapezoid(shares.sum(axis=0), _HORIZON[:span]))
            self._ratio = min(expected / asked, 1.0)

    def fits(self, newcomer: Request, prompt_tokens: int, room: int) -> bool:
        share, tokens = self._course(newcomer, prompt_tokens)
        mean = self._mean + share * tokens
        variance = self._variance + share * (1.0 - share) * tokens**2
        mean[0] = max(mean[0], self._mean[0] + prompt_tokens)  # needed whatever happens
        return bool((mean + self._z * np.sqrt(variance) <= room).all())

    def admitted(self, newcomer: Request, prompt_tokens: int) -> None:
        share, tokens = self._course(newcomer, prompt_tokens)
        self._book(share[None], np.zeros(1), tokens[None])

    def step_went_well(self) -> None:
        pass

    def retracted(self, request: Request, survivors: Sequence[Request]) -> None:
        self._z = min(MAX_Z, self._z + STEP_OF_Z * (1.0 - self._target_rate))

    def finished(self, request: Request) -> None:
        self._z = max(MIN_Z, self._z - STEP_OF_Z * self._target_rate)
        if not request.params.ignore_eos:
            kind = kind_of(request.message.namespace, request.max_new_tokens)
            self._history.add(kind, len(request.output_ids))

    def reset(self) -> None:
        pass  # what was learnt of lengths holds for the next load too

    def _course(
        self, newcomer: Request, prompt_tokens: int
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return how likely newcomer runs at each moment, and the tokens it then takes: [T]."""
        left = _left([newcomer])
        shares = self._still_running([newcomer], left, _HORIZON)
        return shares[0], _growth(left, np.array([float(prompt_tokens)]), _LAST)[0]

    def _still_running(
        self, requests: Sequence[Request], left: NDArray[np.float64], horizon: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Return how likely each request still runs at each moment of the horizon: [R, T]."""
        by_kind: dict[Kind, list[int]] = {}
        for index, one in enumerate(requests):
            if not one.params.ignore_eos:
                kind = kind_of(one.message.namespace, one.max_new_tokens)
                by_kind.setdefault(kind, []).append(index)
        shares = np.ones((len(requests), len(horizon)))
        for kind, places in by_kind.items():
            curve = self._history.survival(kind)
            done = np.array([len(requests[index].output_ids) for index in places])
            share = longer_than(curve, done[:, None] + horizon)
            now = share[:, :1]
            # Beyond all that was seen nothing is known but the limit.
            shares[places] = np.where(now > 1e-3, share / np.maximum(now, 1e-3), 1.0)
        shares[left[:, None] <= horizon] = 0.0
        return shares

    def _book(
        self,
        shares: NDArray[np.float64],
        held: NDArray[np.float64],
        growth: NDArray[np.float64],
    ) -> None:
        tokens = held[:, None] + growth
        span = tokens.shape[1]
        self._mean[:span] += (shares * tokens).sum(axis=0)
        self._mean -= held.sum()
        self._variance[:span] += (shares * (1.0 - shares) * tokens**2).sum(axis=0)


def _left(requests: Sequence[Request]) -> NDArray[np.float64]:
    return np.array([one.num_new_tokens_left for one in requests], dtype=np.float64)


def _growth(
    left: NDArray[np.float64], prompt_left: NDArray[np.float64], last: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the tokens that each request takes by the end of each span if it lasts: [R, T]."""
    return prompt_left[:, None] + np.minimum(last, left[:, None])


def _held(request: Request) -> int:
    """Return the tokens that its end would free: its own, and of the tree what only it locks."""
    lease = request.kv_lease
    tokens = lease.num_allocated - lease.num_tree_owned
    node = lease.node
    while node.lock_count == 1:
        assert node.parent is not None, f"a lock on the root: {node!r}"
        tokens += node.num_tokens
        node = node.parent
    return tokens
