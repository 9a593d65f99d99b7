"""A small vocabulary for grammar tests: every byte, some longer tokens, control tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from runtime.grammars.matcher import Grammar, Matcher
from runtime.grammars.vocabulary import Vocabulary

END_ID = 256
MARK_ID = 257  # a control token, <|mark|>
_LONGER = (
    b"</",
    b"think",
    b">\n\n",
    b'>{"',
    b'{"name',
    b'": ',
    b"tool_call",
    b"</think> no",
    b"ok ",
)


def byte_vocabulary() -> Vocabulary:
    """Bytes have their own ids; encode takes the longest token at each place."""
    tokens = [bytes([byte]) for byte in range(256)] + [b"<|end|>", b"<|mark|>", *_LONGER]
    by_length = sorted(range(len(tokens)), key=lambda i: -len(tokens[i]))
    text_ids = [i for i in by_length if i not in (END_ID, MARK_ID)]

    def encode(text: str) -> list[int]:
        data, ids = text.encode(), []
        while data:
            found = next(i for i in text_ids if data.startswith(tokens[i]))
            ids.append(found)
            data = data[len(tokens[found]) :]
        return ids

    return Vocabulary(tokens, {END_ID: "<|end|>", MARK_ID: "<|mark|>"}, [END_ID], encode)


def allowed(matcher: Matcher, vocabulary: Vocabulary) -> set[int]:
    """The ids that matcher lets come next."""
    mask = np.zeros(vocabulary.bitmask_words, dtype=np.uint32)
    matcher.fill(mask)
    bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
    return {int(i) for i in np.flatnonzero(bits)}


def takes(grammar: Grammar, ids: Sequence[int]) -> bool:
    """Whether ids are a whole text of grammar; what the masks show must be taken too.

    Where a text is forced, masks show only the tokenizer's own tokens of it.
    """
    vocabulary = byte_vocabulary()
    matcher = grammar.matcher()
    for token_id in [*ids, END_ID]:
        is_shown = token_id in allowed(matcher, vocabulary)
        if not matcher.accept([token_id]):
            assert not is_shown, token_id
            return False
    return matcher.is_finished


def takes_text(grammar: Grammar, text: str) -> bool:
    """Whether text, byte by byte, is a whole text of grammar; <|mark|> is the control token."""
    ids: list[int] = []
    for index, part in enumerate(text.split("<|mark|>")):
        ids += [MARK_ID] * (index > 0) + list(part.encode())
    return takes(grammar, ids)
