"""Admission: may a newcomer start, given what the running requests will still take of the pool?

One interface, four rules. ratio: a running request is booked at its remaining output times
new_token_ratio, a newcomer in full; the ratio falls while decoding goes well and jumps at a
retraction (idea and constants: SGLang's published scheduler). reserve-all: everybody is booked in
full, so that nothing is ever retracted (TensorRT-LLM's guaranteed-no-evict). prompt-only: nobody's
output is booked (vLLM's). learnt: see learnt_admission.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from .config import SchedulerConfig
from .request import Request

CLIP_NEW_TOKENS = 4096  # longest remaining output that ratio books; the real limit is unchanged
INITIAL_RATIO = 0.7
FLOOR_SHARE = 0.14  # of the initial ratio
DECAY_STEPS = 600  # decode steps from the initial ratio to the floor
RETRACT_MARGIN_STEPS = 20  # decode steps that a retraction should make room for


class AdmissionRule(Protocol):
    """Decides on newcomers; told of all that it may learn from.

    In each step: begin_step with the active requests, then fits for a newcomer, and admitted if it
    was let in.
    """

    @property
    def ratio(self) -> float:
        """The share of the asked-for output that is booked, for logs and metrics."""
        ...

    def begin_step(self, active: Sequence[Request]) -> None:
        """A step's admissions begin; active hold leases."""
        ...

    def fits(self, newcomer: Request, prompt_tokens: int, room: int) -> bool:
        """Whether newcomer, which takes prompt_tokens now, may join.

        room: tokens free or evictable, less what was promised to nobody: the newcomer's cached
        prefix is locked already.
        """
        ...

    def admitted(self, newcomer: Request, prompt_tokens: int) -> None:
        """newcomer has joined; prompt_tokens of it are not computed yet."""
        ...

    def step_went_well(self) -> None:
        """A decode step found room for all."""
        ...

    def retracted(self, request: Request, survivors: Sequence[Request]) -> None:
        """A decode step did not; request gave way."""
        ...

    def finished(self, request: Request) -> None:
        """request has ended by itself."""
        ...

    def reset(self) -> None:
        """The scheduler is idle."""
        ...


class BookedShare:
    """reserve-all (share 1) and prompt-only (share 0): a fixed share of the output is booked."""

    def __init__(self, share: float) -> None:
        self._share = share
        self._booked = 0.0

    @property
    def ratio(self) -> float:
        return self._share

    def begin_step(self, active: Sequence[Request]) -> None:
        self._booked = sum(
            prompt_tokens_left(one) + one.num_new_tokens_left * self._share for one in active
        )

    def fits(self, newcomer: Request, prompt_tokens: int, room: int) -> bool:
        return self._need(newcomer, prompt_tokens) <= room - self._booked

    def admitted(self, newcomer: Request, prompt_tokens: int) -> None:
        self._booked += self._need(newcomer, prompt_tokens)

    def step_went_well(self) -> None:
        pass

    def retracted(self, request: Request, survivors: Sequence[Request]) -> None:
        pass

    def finished(self, request: Request) -> None:
        pass

    def reset(self) -> None:
        pass

    def _need(self, newcomer: Request, prompt_tokens: int) -> float:
        return prompt_tokens + newcomer.num_new_tokens_left * self._share


class NewTokenRatio:
    """The reference rule. conservativeness scales the initial ratio."""

    def __init__(self, conservativeness: float) -> None:
        self._initial = min(1.0, INITIAL_RATIO * conservativeness)
        self._floor = self._initial * FLOOR_SHARE
        self._decay = (self._initial - self._floor) / DECAY_STEPS
        self._booked = 0.0
        self._ratio = self._initial

    @property
    def ratio(self) -> float:
        return self._ratio

    def begin_step(self, active: Sequence[Request]) -> None:
        booked = 0.0
        for one in active:  # written out: it was a tenth of the scheduler's time for a step
            left = one.num_new_tokens_left
            if left > CLIP_NEW_TOKENS:
                left = CLIP_NEW_TOKENS
            booked += left if one.params.ignore_eos else left * self._ratio
            missing = one.num_tokens - one.kv_lease.num_allocated
            if missing > 0:
                booked += missing
        self._booked = booked

    def fits(self, newcomer: Request, prompt_tokens: int, room: int) -> bool:
        return prompt_tokens + _clipped_output(newcomer) <= room - self._booked

    def admitted(self, newcomer: Request, prompt_tokens: int) -> None:
        # Charged in full in the step that admits it, with the ratio from the next one on.
        self._booked += prompt_tokens + _clipped_output(newcomer)

    def step_went_well(self) -> None:
        self._ratio = max(self._floor, self._ratio - self._decay)

    def retracted(self, request: Request, survivors: Sequence[Request]) -> None:
        """Start again from what the survivors have generated."""
        generated = sum(len(one.output_ids) for one in survivors)
        limit = sum(one.max_new_tokens for one in survivors)
        margin = RETRACT_MARGIN_STEPS * len(survivors)
        self._ratio = min(1.0, max(self._floor, (generated + margin) / (limit + 1)))

    def finished(self, request: Request) -> None:
        pass

    def reset(self) -> None:
        self._ratio = self._initial


def prompt_tokens_left(request: Request) -> int:
    """Prompt tokens of an active request that have no slots yet."""
    assert request.lease is not None, request.rid
    return max(request.num_tokens - request.lease.num_allocated, 0)


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


def admission_rule(config: SchedulerConfig) -> AdmissionRule:
    """Return a new rule of the kind that config.admission names."""
    return RULES[config.admission](config)


def _learnt(config: SchedulerConfig) -> AdmissionRule:
    from .learnt_admission import LearntForecast

    return LearntForecast(config.target_retraction_rate)


RULES: dict[str, Callable[[SchedulerConfig], AdmissionRule]] = {
    "ratio": lambda config: NewTokenRatio(config.conservativeness),
    "reserve-all": lambda config: BookedShare(1.0),
    "prompt-only": lambda config: BookedShare(0.0),
    "learnt": _learnt,
}


def _clipped_output(request: Request) -> int:
    return min(request.num_new_tokens_left, CLIP_NEW_TOKENS)
