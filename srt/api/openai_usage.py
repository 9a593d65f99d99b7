"""The usage object of the OpenAI routes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .generation import Completion


def usage_of(completions: Sequence[Completion], num_samples: int) -> dict[str, Any]:
    """Return the tokens used so far by completions, num_samples in a row for each prompt.

    A prompt counts once, however many samples it has; its cached tokens are those that were cached
    before any of its samples ran.
    """
    prompt_tokens = cached_tokens = completion_tokens = 0
    for first in range(0, len(completions), num_samples):
        seen = [
            one.progress
            for one in completions[first : first + num_samples]
            if one.progress is not None
        ]
        if seen:
            prompt_tokens += seen[0].prompt_tokens
            cached_tokens += min(one.cached_tokens for one in seen)
            completion_tokens += sum(one.completion_tokens for one in seen)
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": cached_tokens},
    }
