"""Incremental detokenization: token ids in, printable text out, whatever the chunks.

Where decoding is joining bytes, an incremental UTF-8 decoder is exact and costs what the new tokens
cost. Other vocabularies are decoded again over a short window: the text of a window with the new
token less the text of the window without it, as text generation servers commonly do.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Protocol

from .token_bytes import VocabularyKind
from .tokenizer import Tokenizer

# A character takes at most four tokens, so this many ids before the output always hold the start of
# one that the prompt left open.
PROMPT_TAIL_TOKENS = 5
# Tokens without a complete character before a window gives up waiting and shows U+FFFD.
_MAX_WINDOW_TOKENS = 12
_BROKEN = "\ufffd"


class IncrementalDetokenizer:
    """The text of one output, piece by piece.

    The pieces joined are what decoding all pushed ids gives in the context of prompt_tail (the last
    PROMPT_TAIL_TOKENS prompt ids): a character that the prompt began is completed, a leading space
    that the vocabulary drops only at the very start of a text is kept after a prompt.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt_tail: Sequence[int] = (),
        skip_special_tokens: bool = True,
        spaces_between_special_tokens: bool = True,
    ) -> None:
        stream: _Stream
        if tokenizer.kind is VocabularyKind.OTHER:
            stream = _WindowStream(tokenizer, skip_special_tokens, spaces_between_special_tokens)
        else:
            stream = _ByteStream(tokenizer, skip_special_tokens)
        stream.push(prompt_tail)
        self._stream = stream

    def push(self, token_ids: Sequence[int]) -> str:
        """Add token_ids and return the text that is now complete."""
        return self._stream.push(token_ids)

    def finish(self) -> str:
        """The rest: U+FFFD for a character that was never completed."""
        return self._stream.finish()


class _Stream(Protocol):
    def push(self, token_ids: Sequence[int]) -> str: ...

    def finish(self) -> str: ...


class _ByteStream:
    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._skip_special_tokens = skip_special_tokens
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._drops_space = tokenizer.strips_leading_space

    def push(self, token_ids: Sequence[int]) -> str:
        data = self._tokenizer.joined_bytes(token_ids, self._skip_special_tokens)
        if self._drops_space and data:
            self._drops_space = False
            data = data.removeprefix(b" ")
        return self._decoder.decode(data)

    def finish(self) -> str:
        return self._decoder.decode(b"", True)


class _WindowStream:
    """Keeps the last shown tokens, as context, and the tokens that are not text yet."""

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool, spaces: bool) -> None:
        self._tokenizer = tokenizer
        self._flags = (skip_special_tokens, spaces)
        self._ids: list[int] = []
        self._read = 0

    def push(self, token_ids: Sequence[int]) -> str:
        # One token at a time: the result must not depend on the chunks.
        return "".join([self._push_one(token_id) for token_id in token_ids])

    def finish(self) -> str:
        text = self._new_text()
        self._read = len(self._ids)
        return text

    def _push_one(self, token_id: int) -> str:
        if self._flags[0] and token_id in self._tokenizer.special_ids:
            return ""
        self._ids.append(token_id)
        text = self._new_text()
        waiting = len(self._ids) - self._read < _MAX_WINDOW_TOKENS
        if text.endswith(_BROKEN) and waiting:
            return ""
        # What was just shown is the next token's context; a token without text keeps the one
        # before.
        keep = self._read if text else 0
        del self._ids[:keep]
        self._read = len(self._ids)
        if self._read > 4 * _MAX_WINDOW_TOKENS:
            del self._ids[: self._read - _MAX_WINDOW_TOKENS]
            self._read = len(self._ids)
        return text

    def _new_text(self) -> str:
        shown = self._tokenizer.decode(self._ids[: self._read], *self._flags)
        return self._tokenizer.decode(self._ids, *self._flags)[len(shown) :]
