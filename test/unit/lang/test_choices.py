"""Which choice wins: the three rules, on figures worked out by hand."""

from __future__ import annotations

import pytest

from runtime import ChoicesMethod, gen, select
from runtime.lang.choices import ChoiceScore, decide
from runtime.lang.errors import ProgramError
from runtime.lang.expressions import Select


def _score(*logprobs: float | None, alone: tuple[float, ...] | None = None) -> ChoiceScore:
    return ChoiceScore(tuple(range(len(logprobs))), logprobs, alone)


def test_length_normalised_takes_the_best_mean() -> None:
    # Sums -2 and -3 would prefer the first; means -2 and -1 the second.
    decision = decide(ChoicesMethod.TOKEN_LENGTH_NORMALIZED, [_score(-2), _score(-1, -1, -1)])

    assert decision.winner == 1
    assert decision.meta["normalized_prompt_logprobs"] == [-2, -1]


def test_greedy_goes_token_by_token_as_the_model_would() -> None:
    # The first token decides between -1, -1 and -2; then the second between -5 and -3.
    scores = [_score(-1, -5), _score(-1, -3), _score(-2, 0)]

    assert decide(ChoicesMethod.GREEDY_TOKEN_SELECTION, scores).winner == 1


def test_greedy_goes_on_with_the_mean_of_a_choice_that_has_ended() -> None:
    # The short one has -1 again in the second place, better than -2.
    decision = decide(ChoicesMethod.GREEDY_TOKEN_SELECTION, [_score(-1, -2), _score(-1)])

    assert decision.winner == 1
    assert decision.meta["greedy_logprob_matrix"] == [[-1, -2], [-1, -1]]


def test_unconditional_takes_what_the_text_makes_more_likely() -> None:
    # The first is likely anyway: -1 against -1. The second gains 3 by the text.
    scores = [_score(-1, alone=(-1,)), _score(-2, alone=(-5,))]
    decision = decide(ChoicesMethod.UNCONDITIONAL_LIKELIHOOD_NORMALIZED, scores)

    assert decision.winner == 1
    assert decision.meta["normalized_unconditional_prompt_logprobs"] == [0, 3]


@pytest.mark.parametrize("method", list(ChoicesMethod))
def test_the_first_of_equals_wins(method: ChoicesMethod) -> None:
    assert decide(method, [_score(-1, alone=(0,))] * 3).winner == 0


def test_a_choice_with_values_left_out_cannot_win_by_its_mean() -> None:
    scores = [_score(-1, None), _score(-2, -2), _score(-3, -3)]

    decision = decide(ChoicesMethod.TOKEN_LENGTH_NORMALIZED, scores)

    assert decision.winner == 1
    assert decision.meta["normalized_prompt_logprobs"] == [None, -2, -3]


def test_greedy_needs_no_more_values_once_one_is_left() -> None:
    scores = [_score(-2, None), _score(-1, None)]

    assert decide(ChoicesMethod.GREEDY_TOKEN_SELECTION, scores).winner == 1


def test_gen_with_choices_is_a_select() -> None:
    made = gen("x", choices=["a", "b"], choices_method="greedy_token_selection")

    assert made == Select("x", ("a", "b"), ChoicesMethod.GREEDY_TOKEN_SELECTION)


@pytest.mark.parametrize(
    ("choices", "words"),
    [
        (None, "at least one text"),
        ([], "at least one text"),
        ("ab", "at least one text"),
        (["a", ""], "non-empty"),
        (["a", "a"], "twice"),
    ],
)
def test_choices_that_cannot_be_told_apart_are_refused(
    choices: list[str] | None, words: str
) -> None:
    with pytest.raises(ProgramError, match=words):
        select("x", choices)


def test_a_temperature_and_an_unknown_method_are_refused() -> None:
    with pytest.raises(ProgramError, match=r"temperature of 'x' is 0\.7"):
        select("x", ["a"], temperature=0.7)
    with pytest.raises(ProgramError, match="choices_method is 'best'; it must be one of token_len"):
        select("x", ["a"], choices_method="best")
