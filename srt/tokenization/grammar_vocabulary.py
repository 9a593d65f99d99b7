"""grammar_vocabulary: a tokenizer as the grammar engines see it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cached_property

from tokenizers import Tokenizer as Backend

from runtime.grammars.vocabulary import Vocabulary

from ..errors import BadRequest
from .token_bytes import VocabularyKind
from .tokenizer import Tokenizer

# A control character that is a token of its own in front of any text.
_MARK = "\x02"


def grammar_vocabulary(
    tokenizer: Tokenizer, vocab_size: int, end_ids: Iterable[int] = ()
) -> Vocabulary:
    """The vocabulary of a model with vocab_size logits.

    end_ids: those of the model's files; the tokenizer's own is added. Raises BadRequest if the
    tokenizer's tokens do not stand for fixed bytes, or if nothing ends an answer.
    """
    if tokenizer.kind is VocabularyKind.OTHER:
        raise BadRequest(
            "this model's tokenizer does not map tokens to fixed bytes; "
            "response formats and grammars need one that does"
        )
    ends = set(end_ids)
    if tokenizer.eos_token_id is not None:
        ends.add(tokenizer.eos_token_id)
    special = {i: tokenizer.token_text(i) for i in tokenizer.special_ids}
    tokens = [tokenizer.token_bytes(i) for i in range(vocab_size)]
    try:
        return Vocabulary(tokens, special, ends, _PlainText(tokenizer).encode)
    except ValueError as error:
        raise BadRequest(f"response formats and grammars cannot be served: {error}") from None


class _PlainText:
    """Encodes text in the middle of an answer: no start token, no space put in front."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        added = tokenizer.backend.get_added_tokens_decoder().values()
        names = [re.escape(token.content) for token in added if token.special]
        self._special = re.compile("|".join(names)) if names else None

    def encode(self, text: str) -> list[int]:
        """Ids of text; control tokens written out in it are text."""
        if not self._tokenizer.strips_leading_space:
            return self._ids(text)
        mark = self._mark_ids
        ids = self._ids(_MARK + text)
        return ids[len(mark) :] if ids[: len(mark)] == mark else self._ids(text)

    def _ids(self, text: str) -> list[int]:
        if self._special is None or not self._special.search(text):
            return self._tokenizer.encode(text, add_special_tokens=False)
        return list(self._literal_backend.encode(text, add_special_tokens=False).ids)

    @cached_property
    def _mark_ids(self) -> list[int]:
        return self._ids(_MARK)

    @cached_property
    def _literal_backend(self) -> Backend:
        """A copy of the tokenizer that does not look for control tokens; made when needed."""
        backend = Backend.from_str(self._tokenizer.backend.to_str())
        backend.encode_special_tokens = True
        return backend
