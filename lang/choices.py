"""Which of several choices wins, from the log-probabilities of their tokens.

The three rules are those of SGLang's select, ties included: the first choice wins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any


class ChoicesMethod(Enum):
    """How choices of different length are compared.

    The last is by the mean of what the text before raises each token by, as SGLang has it: the
    first token counts with its whole log-probability, divided by the length. That favours long
    choices whose first token is unlikely; use it for choices of about equal length.
    """

    TOKEN_LENGTH_NORMALIZED = "token_length_normalized"
    GREEDY_TOKEN_SELECTION = "greedy_token_selection"
    UNCONDITIONAL_LIKELIHOOD_NORMALIZED = "unconditional_likelihood_normalized"


@dataclass(frozen=True, slots=True)
class ChoiceScore:
    """Log-probabilities of one choice's tokens after the text, and of the tokens by themselves.

    None stands for one that early exit has left out: the choice cannot win, or has won already.
    unconditional is None unless the method needs it, and counts its first token, which follows
    nothing, as 0.
    """

    token_ids: tuple[int | str, ...]  # their texts, from a backend that gives no ids
    logprobs: tuple[float | None, ...]
    unconditional: tuple[float | None, ...] | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """The index of the winner, and the figures that decided, for the meta info."""

    winner: int
    meta: dict[str, Any]


def decide(method: ChoicesMethod, scores: Sequence[ChoiceScore]) -> Decision:
    """The winner of scores by method; there is at least one, and none is without tokens.

    What early exit has left out must be such that no value could change the winner.
    """
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
        matrix = _padded(scores, means)
        meta["greedy_logprob_matrix"] = matrix
        return Decision(_greedy_survivors(matrix)[0], meta)
    gains = [_mean(_gains(one)) for one in scores]
    meta["unconditional_token_logprobs"] = [list(one.unconditional or ()) for one in scores]
    meta["normalized_unconditional_prompt_logprobs"] = gains
    return Decision(_first_best(gains), meta)


def _greedy_survivors(matrix: list[list[float | None]]) -> list[int]:
    """Those that have the largest log-probability at the first token, of these at the second..."""
    left = list(range(len(matrix)))
    for column in range(len(matrix[0])):
        if len(left) == 1:
            break
        values = [matrix[row][column] for row in left]
        best = max(one for one in values if one is not None)
        left = [row for row, value in zip(left, values, strict=True) if value == best]
    return left


def _padded(
    scores: Sequence[ChoiceScore], means: Sequence[float | None]
) -> list[list[float | None]]:
    width = max(len(one.logprobs) for one in scores)
    return [
        [*one.logprobs, *[mean] * (width - len(one.logprobs))]
        for one, mean in zip(scores, means, strict=True)
    ]


def _gains(score: ChoiceScore) -> list[float | None]:
    assert score.unconditional is not None
    pairs = zip(score.logprobs, score.unconditional, strict=True)
    return [None if a is None or b is None else a - b for a, b in pairs]


def _mean(values: Sequence[float | None]) -> float | None:
    """None where a value is left out."""
    known = [one for one in values if one is not None]
    return sum(known) / len(known) if len(known) == len(values) else None


def _first_best(values: Sequence[float | None]) -> int:
    known = [(value, -index) for index, value in enumerate(values) if value is not None]
    return -max(known)[1]
