"""The ratios and bounds that we want to reach, and where a run stands against each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .records import Record
from .spread import Ratio, Spread, ratio_of, spread_of_figure


@dataclass(frozen=True, slots=True)
class Goal:
    """ours must be wanted times better than the best of the rivals in one figure of one case.

    rivals: the contestants of one form of weights (without ours), or the name of one contestant.
    """

    case: str
    title: str
    figure: str
    unit: str
    lower_is_better: bool
    ours: str
    rivals: str
    wanted: float


@dataclass(frozen=True, slots=True)
class Bound:
    """One figure of ours must be at most (or at least) bound, whatever the rivals do."""

    case: str
    title: str
    figure: str
    unit: str
    lower_is_better: bool
    ours: str
    bound: float

    def is_reached_by(self, measured: Spread) -> bool:
        """Whether the median keeps within the bound."""
        if self.lower_is_better:
            return measured.median <= self.bound
        return measured.median >= self.bound


@dataclass(frozen=True, slots=True)
class Standing:
    """A goal with what was measured; None where nobody was."""

    goal: Goal
    ours: Spread | None
    rival: str | None
    theirs: Spread | None
    ratio: Ratio | None

    @property
    def is_reached(self) -> bool | None:
        """Whether the medians reach the goal; None if that is unknown."""
        return None if self.ratio is None else self.ratio.median >= self.goal.wanted


GOALS = (
    Goal("A", "one stream, bf16", "ms_per_token", "ms/token", True, "ours bf16", "bf16", 1.5),
    Goal("A", "one stream, 8-bit", "ms_per_token", "ms/token", True, "ours w8a8", "8-bit", 1.2),
    Goal("A", "one stream, Q4_1", "ms_per_token", "ms/token", True, "ours gguf", "Q4_1", 1.35),
    Goal("B", "long prompt, bf16", "prompt_tok_s", "tok/s", False, "ours bf16", "bf16", 1.8),
    Goal("C", "32 streams, bf16", "output_tok_s", "tok/s", False, "ours bf16", "bf16", 1.9),
    Goal("B", "8-bit over our bf16", "prompt_tok_s", "tok/s", False, "ours w8a8", "ours bf16", 1.0),
    Goal("C", "8-bit over our bf16", "output_tok_s", "tok/s", False, "ours w8a8", "ours bf16", 1.0),
    Goal("D", "shared prefix, bf16", "wall_s", "s", True, "ours bf16", "bf16", 2.2),
    Goal("E", "JSON schema, bf16", "requests_s", "req/s", False, "ours bf16", "bf16", 1.0),
)

BOUNDS = (
    Bound("A", "one stream, bf16", "limit_share", "of the read rate", False, "ours bf16", 0.8),
    Bound("F", "first answer", "first_answer_s", "s", True, "ours bf16", 3.0),
    Bound("F", "memory", "peak_pss_mib", "MiB", True, "ours bf16", 1024.0),
)


def standings(records: Sequence[Record], weights: dict[str, str]) -> list[Standing]:
    """Return where each goal stands. weights: contestant name -> form of its weights."""
    return [_standing(goal, records, weights) for goal in GOALS]


def _standing(goal: Goal, records: Sequence[Record], weights: dict[str, str]) -> Standing:
    ours = spread_of_figure(records, goal.ours, goal.case, goal.figure)
    best: tuple[str, Spread] | None = None
    for name, form in weights.items():
        if goal.rivals not in (form, name) or (goal.rivals == form and name.startswith("ours")):
            continue
        found = spread_of_figure(records, name, goal.case, goal.figure)
        if found is not None and (best is None or _is_better(found, best[1], goal)):
            best = name, found
    if best is None or ours is None:
        rival, theirs = best or (None, None)
        return Standing(goal, ours, rival, theirs, None)
    ratio = ratio_of(ours, best[1], lower_is_better=goal.lower_is_better)
    return Standing(goal, ours, best[0], best[1], ratio)


def _is_better(one: Spread, other: Spread, goal: Goal) -> bool:
    if goal.lower_is_better:
        return one.median < other.median
    return one.median > other.median
