"""Which of several choices wins, from the log-probabilities of their tokens.

The three rules are those of SGLang's select, ties included: the first choice wins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any


class ChoicesMethod(Enum):
    """How choices of different length are compared."""

    TOKEN_LENGTH_NORMALIZED = "token_length_normalized"
    GREEDY_TOKEN_SELECTION = "greedy_token_selection"
    UNCONDITIONAL_LIKELIHOOD_NORMALIZED = "unconditional_likelihood_normalized"


@dataclass(frozen=True, slots=True)
class ChoiceScore:
    """Log-probabilities of one choice's tokens after the text, and of the tokens by themselves.

    unconditional is None unless the method needs it, and counts its first token, which follows
    nothing, as 0.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    unconditional: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """The index of the winner, and the figures that decided, for the meta info."""

    winner: int
    meta: dict[str, Any]


def decide(method: ChoicesMethod, scores: Sequence[ChoiceScore]) -> Decision:
    """The winner of scores by method; there is at least one, and none is without tokens."""
    means = [_mean(one.logprobs) for one in scores]
    meta: dict[str, Any] = {
        "choices_method": method.value,
        "normalized_prompt_logprobs": means,
        "input_token_logprobs": [
            list(zip(one.logprobs, one.token_ids, strict=True)) for one in scores
        ],
    }
    if method is ChoicesMethod.TOKEN_LENGTH_NORMALIZED:
        return Decision(_first_best(means), meta)
    if method is ChoicesMethod.GREEDY_TOKEN_SELECTION:
        left = _greedy_survivors(scores, means)
        meta["greedy_logprob_matrix"] = _padded(scores, means)
        return Decision(left[0], meta)
    gains = [_mean(_gains(one)) for one in scores]
    meta["unconditional_token_logprobs"] = [list(one.unconditional or ()) for one in scores]
    meta["normalized_unconditional_prompt_logprobs"] = gains
    return Decision(_first_best(gains), meta)


def _greedy_survivors(scores: Sequence[ChoiceScore], means: list[float]) -> list[int]:
    """Those that have the largest log-probability at the first token, of these at the second..."""
    matrix = _padded(scores, means)
    left = list(range(len(scores)))
    for column in range(len(matrix[0])):
        best = max(matrix[row][column] for row in left)
        left = [row for row in left if matrix[row][column] == best]
        if len(left) == 1:
            break
    return left


def _padded(scores: Sequence[ChoiceScore], means: list[float]) -> list[list[float]]:
    width = max(len(one.logprobs) for one in scores)
    return [
        [*one.logprobs, *[mean] * (width - len(one.logprobs))]
        for one, mean in zip(scores, means, strict=True)
    ]


def _gains(score: ChoiceScore) -> list[float]:
    assert score.unconditional is not None
    return [a - b for a, b in zip(score.logprobs, score.unconditional, strict=True)]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _first_best(values: list[float]) -> int:
    return max(range(len(values)), key=values.__getitem__)
