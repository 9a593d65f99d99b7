"""How many prompt tokens a step may take so that decoding does not wait longer than asked."""

from __future__ import annotations

import sys

MIN_SLICE_TOKENS = 16  # however slow the machine: prompts must come to an end
_MIN_SAMPLE_TOKENS = 64  # smaller steps say more of their fixed costs than of the pace
_WEIGHT = 0.2  # of a new sample


class PrefillPace:
    """Learns the machine's prefill speed from its steps; max_slice_ms None sets no limit."""

    def __init__(self, max_slice_ms: float | None) -> None:
        self._max_slice_ms = max_slice_ms
        self._ms_per_token: float | None = None

    @property
    def slice_tokens(self) -> int:
        """Prompt tokens that fit into a slice, as far as is known."""
        if self._max_slice_ms is None or not self._ms_per_token:
            return sys.maxsize
        return max(int(self._max_slice_ms / self._ms_per_token), MIN_SLICE_TOKENS)

    @property
    def tokens_per_second(self) -> float | None:
        """Prompt tokens computed per second; None while nothing is known."""
        return None if not self._ms_per_token else 1000.0 / self._ms_per_token

    def step_took(self, num_prompt_tokens: int, seconds: float) -> None:
        """Learn from a step with so many prompt tokens."""
        if num_prompt_tokens < _MIN_SAMPLE_TOKENS:
            return
        sample = seconds * 1000 / num_prompt_tokens
        if self._ms_per_token is None:
            self._ms_per_token = sample
        else:
            self._ms_per_token += _WEIGHT * (sample - self._ms_per_token)
