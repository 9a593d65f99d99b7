"""CanonicalCut: forced text as the tokens that the tokenizer itself would put there.

The text so far and the forced text are encoded together, and tokens are kept up to the last
boundary that no longer token could span, whatever follows.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache

from .vocabulary import Vocabulary

CONTEXT_TOKENS = 16  # tokens of the text so far that are encoded again; else all of them


class CanonicalCut:
    """For one vocabulary."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._sorted = sorted(vocabulary.text_ids)

    def tokens(self, history: Sequence[int], forced: str) -> list[int]:
        """The tokens of forced after history; [] where the boundary is not the tokenizer's."""
        plain = self._plain_end(history)
        for count in (CONTEXT_TOKENS, len(plain)):
            context = plain[-count:] if count else []
            found = self._after(context, forced)
            if found is not None:
                return found
            if count >= len(plain):
                break
        return []

    def _plain_end(self, history: Sequence[int]) -> list[int]:
        """The end of history that is text."""
        start = len(history)
        while start and self._vocabulary.is_text(history[start - 1]):
            start -= 1
        return list(history[start:])

    def _after(self, context: list[int], forced: str) -> list[int] | None:
        """Tokens after context; None if the tokenizer would cut context in another way."""
        before = self._vocabulary.joined(context)
        data = before + forced.encode()
        try:
            text = data.decode()
        except UnicodeDecodeError:
            return None
        ids = self._vocabulary.encode(text)
        if ids[: len(context)] != context:
            return None
        return self._kept(ids[len(context) :], len(before), data)

    def _kept(self, ids: list[int], position: int, data: bytes) -> list[int]:
        last = self._last_safe_position(data)
        for count, token_id in enumerate(ids):
            position += len(self._vocabulary.tokens[token_id])
            if position > last:
                return ids[:count]
        return ids

    def _last_safe_position(self, data: bytes) -> int:
        """The first position from which a token could reach past the end of data."""
        for start in range(max(0, len(data) - self._vocabulary.max_token_bytes), len(data)):
            suffix = data[start:]
            index = bisect_right(self._sorted, suffix)
            if index < len(self._sorted) and self._sorted[index].startswith(suffix):
                return start
        return len(data)


@lru_cache(maxsize=4)
def canonical_cut(vocabulary: Vocabulary) -> CanonicalCut:
    """The cut of vocabulary, made at the first call."""
    return CanonicalCut(vocabulary)
