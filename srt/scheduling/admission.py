"""Admission by forecast: how much of the pool running requests will still take.

A running request is booked at its remaining output times new_token_ratio, a newcomer in full. The
ratio falls while decoding goes well and jumps at a retraction, after what the survivors have really
generated. Idea and constants: SGLang's published scheduler (see docs/decisions.md).
"""

from __future__ import annotations

from collections.abc import Iterable

from .request import Request

CLIP_NEW_TOKENS = 4096  # longest remaining output that is booked; the real limit is unchanged
INITIAL_RATIO = 0.7
FLOOR_SHARE = 0.14  # of the initial ratio
DECAY_STEPS = 600  # decode steps from the initial ratio to the floor
RETRACT_MARGIN_STEPS = 20  # decode steps that a retraction should make room for


class OutputForecast:
    """new_token_ratio and what it books."""

    def __init__(self, conservativeness: float) -> None:
        self._initial = min(1.0, INITIAL_RATIO * conservativeness)
        self._floor = self._initial * FLOOR_SHARE
        self._decay = (self._initial - self._floor) / DECAY_STEPS
        self.ratio = self._initial

    def booked_tokens(self, active: Iterable[Request]) -> float:
        """Pool tokens that the active requests are expected to take beyond those they hold."""
        return sum(self._booked(request) for request in active)

    def charge(self, request: Request) -> int:
        """Pool tokens that a newcomer is charged for its output: all of it, clipped."""
        return min(request.num_new_tokens_left, CLIP_NEW_TOKENS)

    def step_went_well(self) -> None:
        """A decode step fitted: trust a little more."""
        self.ratio = max(self._floor, self.ratio - self._decay)

    def retracted(self, survivors: list[Request]) -> None:
        """A decode step did not fit: start again from what the survivors have generated."""
        generated = sum(len(r.output_ids) for r in survivors)
        limit = sum(r.max_new_tokens for r in survivors)
        margin = RETRACT_MARGIN_STEPS * len(survivors)
        self.ratio = min(1.0, max(self._floor, (generated + margin) / (limit + 1)))

    def reset(self) -> None:
        """The scheduler is idle: what was learnt belongs to a load that is gone."""
        self.ratio = self._initial

    def _booked(self, request: Request) -> float:
        prompt_left = max(request.num_uncomputed - 1, 0)
        share = 1.0 if request.params.ignore_eos else self.ratio
        return prompt_left + min(request.num_new_tokens_left, CLIP_NEW_TOKENS) * share


def retraction_order(active: Iterable[Request]) -> list[Request]:
    """First to go first: lowest priority, fewest outputs, longest prompt, latest arrival."""
    return sorted(
        active,
        key=lambda r: (
            r.message.priority,
            len(r.output_ids),
            -r.prompt_length,
            -r.message.arrival_seconds,
        ),
    )
