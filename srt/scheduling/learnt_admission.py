"""Admission by a forecast that is learnt: will the pool hold, at every moment to come?

For each running request the lengths of others tell how likely it still runs t steps from now; then
it holds its tokens and t more, else they are free. The sum over all requests has a mean and a
spread at each t, and a newcomer is let in if mean + z * spread stays within the pool at all of
them. The spread has two parts: each request ends by a chance of its own, and what is known of a
kind may be wrong for all of that kind alike, the more so the fewer have ended. z is the learnt
quantile: it rises at each retraction and falls at each output that ended without one, by steps that
balance at the target rate. Where all may run to their limits and still fit, nothing is forecast.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .active_columns import ActiveColumns
from .length_history import LengthHistory, num_outputs
from .pool_forecast import HORIZON, LAST, PoolForecast
from .request import Request
from .survival import Floats, SurvivalCurves

STEP_OF_Z = 0.5
MIN_Z, MAX_Z = -1.0, 4.0
START_Z = 2.0


class LearntForecast:
    """The learnt rule; target_rate is the share of outputs that may be retracted on the way."""

    def __init__(self, target_rate: float) -> None:
        self._target_rate = target_rate
        self._z = START_Z
        self._history = LengthHistory()
        self._curves = SurvivalCurves()
        self._num_known: Floats = np.zeros(0)  # outputs that each curve rests on: [K]
        self._active: list[Request] = []
        self._joined: list[tuple[Request, int]] = []  # in this step, and not in the forecast yet
        self._most_to_come = 0  # tokens that all of them take if they run to their limits
        self._columns = ActiveColumns.of(())
        self._forecast: PoolForecast | None = None  # None: nobody has needed it in this step
        self._offer: tuple[Request, int, PoolForecast] | None = None

    @property
    def ratio(self) -> float:
        """Mean share of the asked-for output that active requests are expected to take."""
        columns = ActiveColumns.of([one for one in self._active if one.lease is not None])
        asked = float(columns.left.sum())
        if not asked:
            return 1.0
        self._columns, self._forecast = columns, None
        shares = self._running_shares()
        expected = np.trapezoid(shares.sum(axis=0), HORIZON[: shares.shape[1]])
        return min(float(expected) / asked, 1.0)

    def begin_step(self, active: Sequence[Request]) -> None:
        self._active = list(active)
        self._joined.clear()
        self._forecast = self._offer = None
        most = 0
        for one in active:  # a request that has all slots it needs now takes one for each token
            most += one.num_new_tokens_left
            missing = one.num_tokens - one.kv_lease.num_allocated
            if missing > 0:
                most += missing
        self._most_to_come = most

    def fits(self, newcomer: Request, prompt_tokens: int, room: int) -> bool:
        if self._most_to_come + prompt_tokens + newcomer.num_new_tokens_left <= room:
            return True
        if self._forecast is None:
            self._forecast = self._forecast_all()
        offer = self._with(self._forecast, newcomer, prompt_tokens)
        self._offer = (newcomer, prompt_tokens, offer)
        # Its prompt is needed whatever happens later.
        needed = max(offer.mean[0], self._forecast.mean[0] + prompt_tokens)
        return needed <= room and bool((offer.bound(self._z, self._num_known) <= room).all())

    def admitted(self, newcomer: Request, prompt_tokens: int) -> None:
        self._most_to_come += prompt_tokens + newcomer.num_new_tokens_left
        if self._offer is not None and self._offer[:2] == (newcomer, prompt_tokens):
            self._forecast = self._offer[2]
        elif self._forecast is not None:
            self._forecast = self._with(self._forecast, newcomer, prompt_tokens)
        else:
            self._joined.append((newcomer, prompt_tokens))
        self._offer = None

    def step_went_well(self) -> None:
        pass

    def retracted(self, request: Request, survivors: Sequence[Request]) -> None:
        self._z = min(MAX_Z, self._z + STEP_OF_Z * (1.0 - self._target_rate))

    def finished(self, request: Request) -> None:
        self._z = max(MIN_Z, self._z - STEP_OF_Z * self._target_rate)
        if request.length_kind is not None:
            num_output = len(request.output_ids)
            was_cut = num_output >= request.max_new_tokens
            self._history.add(request.length_kind, num_output, was_cut)

    def reset(self) -> None:
        pass  # what was learnt of lengths holds for the next load too

    def _forecast_all(self) -> PoolForecast:
        """Forecast those that were active at the beginning of the step, and who has joined."""
        columns = self._columns = ActiveColumns.of(self._active)
        shares = self._running_shares()
        tokens = np.minimum(LAST[: shares.shape[1]], columns.left[:, None])
        tokens += columns.held_after_prompt[:, None]
        num_kinds = len(columns.kind_places)
        forecast = PoolForecast.of(shares, tokens, columns.kinds, num_kinds, columns.held_now)
        for newcomer, prompt_tokens in self._joined:
            forecast = self._with(forecast, newcomer, prompt_tokens)
        return forecast

    def _running_shares(self) -> Floats:
        """Return how likely each of the columns' requests runs in each span: [R, S]."""
        columns = self._columns
        self._fit_curves()
        num_spans = int(np.searchsorted(HORIZON, columns.left.max(initial=0))) + 1
        moments = HORIZON[:num_spans]  # beyond them nobody runs
        shares = self._curves.still_running(columns.kinds, columns.done, moments)
        shares *= columns.left[:, None] > moments
        return shares

    def _with(self, forecast: PoolForecast, newcomer: Request, prompt_tokens: int) -> PoolForecast:
        """Return forecast with newcomer in it, who takes prompt_tokens and then its output."""
        places = self._columns.kind_places
        if newcomer.length_kind not in places:
            places[newcomer.length_kind] = len(places)
            self._fit_curves()
        place = places[newcomer.length_kind]
        left = newcomer.num_new_tokens_left
        done = np.array([len(newcomer.output_ids)])
        shares = self._curves.still_running(np.array([place]), done, HORIZON)[0]
        shares *= left > HORIZON
        return forecast.plus(shares, prompt_tokens + np.minimum(LAST, left), place)

    def _fit_curves(self) -> None:
        columns = self._columns
        rows = [self._history.counts(kind) for kind in columns.kind_places]
        counts = np.array(rows) if rows else self._history.counts(None)[None]
        self._curves.fit(counts, columns.kinds, columns.done)
        self._num_known = np.maximum(num_outputs(counts), 1.0)
