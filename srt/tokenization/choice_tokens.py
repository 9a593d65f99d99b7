"""Choices as token ids after a text, with the boundary healed.

A choice may merge with the last word of the text into other tokens than the text has by itself.
Its tokens are then all those in which text plus choice differs from the text: the merged one is
scored as a part of the choice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ..errors import BadRequest
from ..messages import ChoicePath

MIN_TAIL_CHARS = 128  # of a text, tokenised again with each choice


class Encoder(Protocol):
    """What is needed of a tokenizer."""

    def encode_all(
        self, texts: Sequence[str], add_special_tokens: bool = True
    ) -> list[list[int]]: ...


@dataclass(frozen=True, slots=True)
class ChoiceTokens:
    """The tokens that all choices stand behind, perhaps none, and what follows for each."""

    prompt_ids: list[int]
    paths: list[ChoicePath]


def choice_tokens(
    encoder: Encoder, header_ids: Sequence[int] | None, text: str, choices: Sequence[str]
) -> ChoiceTokens:
    """The tokens of choices after text, and of text after header_ids.

    header_ids None: the text is the whole prompt, with the special tokens it takes. Else it is
    tokenised by itself, as a part of a conversation. Raises BadRequest for a choice without a token
    of its own: nothing would be scored.
    """
    base, *full = _sequences(encoder, header_ids, text, choices)
    starts = [_num_equal(base, ids) for ids in full]
    for index, (ids, start) in enumerate(zip(full, starts, strict=True)):
        if start == len(ids) or (start == 0 and len(ids) == 1):
            raise BadRequest(
                f"choices.{index} is {choices[index][:80]!r}, which has no token of its own after "
                "this text that the model could predict; put text before it",
                param=f"choices.{index}",
            )
    num_shared = min(starts)
    paths = [
        # Nothing predicts the very first token.
        ChoicePath(ids[num_shared:], max(start, 1) - num_shared)
        for ids, start in zip(full, starts, strict=True)
    ]
    return ChoiceTokens(base[:num_shared], paths)


def num_chars_to_encode(text: str, choices: Sequence[str]) -> int:
    """How much choice_tokens has to tokenise."""
    tail = _tail(text)
    return len(text) + sum(len(tail) + len(one) for one in choices)


def _sequences(
    encoder: Encoder, header_ids: Sequence[int] | None, text: str, choices: Sequence[str]
) -> list[list[int]]:
    """All tokens up to the end of text, and of text with each choice."""
    endings = ("", *choices)
    if header_ids is not None:
        written = [text + one for one in endings]
        encoded = iter(encoder.encode_all([one for one in written if one], False))
        return [[*header_ids, *(next(encoded) if one else ())] for one in written]
    tail = _tail(text)
    if tail != text:
        # A long text is tokenised once; only its last words may become other tokens.
        (whole,) = encoder.encode_all([text])
        parts = encoder.encode_all([tail + one for one in endings], False)
        kept = whole[: len(whole) - len(parts[0])]
        if kept + parts[0] == whole:
            return [kept + part for part in parts]
    return encoder.encode_all([text + one for one in endings])


def _tail(text: str) -> str:
    """The last words of a long text, from a space between two words on; a short text whole.

    What stands before such a space does not change the tokens after it in any tokenizer that splits
    text into words; the caller makes sure for the one at hand.
    """
    for place in range(len(text) - MIN_TAIL_CHARS, 1, -1):
        if text[place] == " " and not text[place - 1].isspace() and not text[place + 1].isspace():
            return text[place:]
    return text


def _num_equal(one: list[int], other: list[int]) -> int:
    for index, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return index
    return min(len(one), len(other))
