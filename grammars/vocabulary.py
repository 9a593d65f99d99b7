"""What the engines know of a model's tokens.

Ids, the bytes each stands for, which of them are control tokens, which of them end an answer, and
how the tokenizer would cut a text. Given as values: nothing here knows a tokenizer library.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property

from .matcher import bitmask_words

# No UTF-8 text contains this byte, so a token spelled with it in front is never legal in text.
NOT_TEXT = b"\xff"


class Vocabulary:
    """The tokens of one model; immutable.

    tokens[i] is what id i adds to the text, b"" for an id without a token; as many as the model has
    logits, which may be more or fewer than the tokenizer has tokens. special maps control tokens
    to their names: legal only where a grammar asks for them by name or id, never as text. end_ids
    are the ids that end an answer, at least one, whether or not they are listed in special.
    encode gives the tokenizer's ids of a text, without a start token, control tokens written out
    in it taken as text.
    """

    def __init__(
        self,
        tokens: Sequence[bytes],
        special: Mapping[int, str],
        end_ids: Iterable[int],
        encode: Callable[[str], Sequence[int]],
    ) -> None:
        self.tokens = tuple(tokens)
        self.end_ids = tuple(sorted({i for i in end_ids if 0 <= i < len(self.tokens)}))
        if not self.end_ids:
            raise ValueError("a vocabulary needs at least one end token among its ids")
        self.special = {i: name for i, name in special.items() if 0 <= i < len(self.tokens)}
        for i in self.end_ids:
            self.special.setdefault(i, self.tokens[i].decode("utf-8", "replace"))
        self._encode = encode

    @property
    def size(self) -> int:
        """V: the number of ids, used or not."""
        return len(self.tokens)

    @property
    def bitmask_words(self) -> int:
        """Number of uint32 words in a bitmask."""
        return bitmask_words(len(self.tokens))

    @property
    def last_word(self) -> int:
        """The bits of a bitmask's last word that stand for ids."""
        return (1 << (len(self.tokens) - 1) % 32 + 1) - 1

    @cached_property
    def fingerprint(self) -> str:
        """Equal for equal vocabularies; masks of one are right for the other."""
        digest = hashlib.sha256()
        for token in self.tokens:
            digest.update(len(token).to_bytes(4, "little") + token)
        digest.update(repr((sorted(self.special.items()), self.end_ids)).encode())
        return digest.hexdigest()

    @cached_property
    def text_ids(self) -> dict[bytes, int]:
        """The ids of text, by their bytes; the smallest where several have the same."""
        found: dict[bytes, int] = {}
        for i, token in enumerate(self.tokens):
            if self.is_text(i):
                found.setdefault(token, i)
        return found

    @cached_property
    def max_token_bytes(self) -> int:
        """The length of the longest token of text."""
        return max(map(len, self.text_ids), default=1)

    def is_text(self, token_id: int) -> bool:
        """Whether token_id may stand in text."""
        token = self.tokens[token_id]
        return bool(token) and not token.startswith(NOT_TEXT) and token_id not in self.special

    def joined(self, token_ids: Iterable[int]) -> bytes:
        """The bytes of token_ids one after the other."""
        return b"".join([self.tokens[i] for i in token_ids])

    def encode(self, text: str) -> list[int]:
        """The ids the tokenizer cuts text into; those the model lacks are cut further."""
        ids = list(self._encode(text))
        if not ids or max(ids) < len(self.tokens):
            return ids
        return self._cut_greedily(text.encode("utf-8"))

    def _cut_greedily(self, data: bytes) -> list[int]:
        """Longest tokens first, for texts whose own tokens have no logit."""
        ids: list[int] = []
        start = 0
        while start < len(data):
            for end in range(min(len(data), start + self.max_token_bytes), start, -1):
                token_id = self.text_ids.get(data[start:end])
                if token_id is not None:
                    ids.append(token_id)
                    start = end
                    break
            else:
                start += 1  # a byte that no token has cannot be generated either
        return ids
