"""Choices become the tokens in which text plus choice differs from the text."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from runtime.srt.errors import BadRequest
from runtime.srt.messages import ChoicePath
from runtime.srt.tokenization.choice_tokens import choice_tokens

BOS = 1
MERGED = {"nn": 1000}  # two letters that are one token where they meet


class Letters:
    """A token is a letter's code, but for MERGED; a text with special tokens begins with BOS."""

    def __init__(self, bos: bool = True) -> None:
        self.num_chars = 0
        self._bos = bos

    def encode_all(self, texts: Sequence[str], add_special_tokens: bool = True) -> list[list[int]]:
        self.num_chars += sum(map(len, texts))
        return [[BOS] * (add_special_tokens and self._bos) + ids(text) for text in texts]


def ids(text: str) -> list[int]:
    found: list[int] = []
    while text:
        length = 2 if text[:2] in MERGED else 1
        found.append(MERGED.get(text[:2]) or ord(text[0]))
        text = text[length:]
    return found


def test_choices_follow_the_text() -> None:
    found = choice_tokens(Letters(), None, "pq", ["a", "bc"])

    assert found.prompt_ids == [BOS, *ids("pq")]
    assert found.paths == [ChoicePath(ids("a")), ChoicePath(ids("bc"))]


def test_a_choice_that_merges_with_the_end_of_the_text_is_scored_with_it() -> None:
    found = choice_tokens(Letters(), None, "pn", ["n", "x"])

    # The others have the text's own last token before them, which is not theirs to score.
    assert found.prompt_ids == [BOS, *ids("p")]
    assert found.paths == [ChoicePath([1000]), ChoicePath(ids("nx"), 1)]


def test_what_follows_a_conversation_is_tokenised_by_itself() -> None:
    found = choice_tokens(Letters(), [7, 8], "n", ["n", "x"])

    assert found.prompt_ids == [7, 8]
    assert found.paths == [ChoicePath([1000]), ChoicePath(ids("nx"), 1)]
    assert choice_tokens(Letters(), [7, 8], "", ["n"]).paths == [ChoicePath(ids("n"))]


@pytest.mark.parametrize("end", ["n", "y z", "  "])
def test_a_long_text_is_tokenised_once_for_all_choices(end: str) -> None:
    text = "word " * 200 + end
    choices = [f"n{i}" for i in range(20)]
    encoder = Letters()

    found = choice_tokens(encoder, None, text, choices)

    for choice, path in zip(choices, found.paths, strict=True):
        assert found.prompt_ids + path.token_ids == [BOS, *ids(text + choice)]
    assert encoder.num_chars < 2 * len(text) + 21 * 200


def test_a_tail_that_has_other_tokens_by_itself_is_not_used() -> None:
    class Parity(Letters):
        """Every token depends on all text before it."""

        def encode_all(
            self, texts: Sequence[str], add_special_tokens: bool = True
        ) -> list[list[int]]:
            return [list(range(1, len(text) + 1)) for text in texts]

    text = "word " * 100

    found = choice_tokens(Parity(), None, text, ["ab"])

    assert found.prompt_ids + found.paths[0].token_ids == list(range(1, len(text) + 3))


def test_without_any_text_the_first_token_is_not_scored() -> None:
    found = choice_tokens(Letters(bos=False), None, "", ["ab", "ac"])

    assert found.prompt_ids == []
    assert found.paths == [ChoicePath(ids("ab"), 1), ChoicePath(ids("ac"), 1)]


def test_a_choice_without_a_token_of_its_own_is_refused() -> None:
    class Swallowing(Letters):
        def encode_all(
            self, texts: Sequence[str], add_special_tokens: bool = True
        ) -> list[list[int]]:
            return super().encode_all([one.rstrip("!") for one in texts], add_special_tokens)

    with pytest.raises(BadRequest, match="'!', which has no token of its own") as caught:
        choice_tokens(Swallowing(), None, "p", ["a", "!"])
    assert caught.value.param == "choices.1"
    with pytest.raises(BadRequest, match="no token of its own"):
        choice_tokens(Letters(bos=False), None, "", ["a"])
