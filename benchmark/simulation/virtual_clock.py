"""Time that passes only when the simulator says so."""

from __future__ import annotations


class VirtualClock:
    """Seconds since the trace began; callable, as the scheduler wants its clock."""

    def __init__(self) -> None:
        self._now = 0.0

    def __call__(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        """Let seconds pass."""
        assert seconds >= 0, f"time would run backwards by {-seconds} s"
        self._now += seconds

    def advance_to(self, time: float) -> None:
        """Go on to time, or stay where it is already past."""
        self._now = max(self._now, time)
