"""What a run leaves behind: one record for each request, samples of each step."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from .trace import TraceRequest


@dataclass(slots=True, eq=False)
class RequestRecord:
    """One request's times, in seconds of the trace, and counts.

    outcome: stop, length, abort; refused (longer than the context); skipped (a parent failed).
    """

    request: TraceRequest
    due: float
    prompt_tokens: int = 0
    seed: int = 0  # names its answer
    admitted: float | None = None
    first_token: float | None = None
    last_token: float | None = None
    worst_gap: float = 0.0
    num_output: int = 0
    cached_tokens: int = 0
    num_retractions: int = 0
    ended: float | None = None
    outcome: str | None = None

    @property
    def is_finished(self) -> bool:
        """Whether it got its whole answer."""
        return self.outcome in ("stop", "length")


def _doubles() -> array[float]:
    return array("d")


@dataclass(slots=True)
class StepSamples:
    """Series over the steps of a run."""

    wall_seconds: array[float] = field(default_factory=_doubles)  # of plan and absorb
    cpu_seconds: array[float] = field(default_factory=_doubles)  # of the same, this thread's
    oldest_wait: array[float] = field(default_factory=_doubles)  # age of the oldest not admitted
    gaps: Counter[float] = field(default_factory=Counter)  # between two tokens of one stream
    times: array[float] = field(default_factory=_doubles)  # of the next three, every few steps
    waiting: array[float] = field(default_factory=_doubles)
    running: array[float] = field(default_factory=_doubles)
    used_share: array[float] = field(default_factory=_doubles)  # of the pool: locked or held

    def take_gaps(self, gaps: Mapping[float, int]) -> None:
        """Count distances between tokens; those within 10 us are one."""
        for gap, count in gaps.items():
            self.gaps[round(gap, 5)] += count


@dataclass(slots=True)
class RunRecords:
    """All of a run."""

    requests: dict[str, RequestRecord] = field(default_factory=dict)
    steps: StepSamples = field(default_factory=StepSamples)
    counters: dict[str, int] = field(default_factory=dict)  # the scheduler's own totals
    virtual_seconds: float = 0.0
    wall_seconds: float = 0.0
