"""ThinkingMasks: which tokens may stand in free thinking, and which ones end it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from functools import cached_property

import numpy as np

from .matcher import Bitmask
from .vocabulary import Vocabulary


class ThinkingMasks:
    """The masks for one vocabulary and closing mark, kept once they were made.

    must_answer: an answer follows, so thinking may not end with an end token, nor with a token that
    holds more than whitespace behind the closing mark: the grammar would not see it.
    """

    def __init__(self, vocabulary: Vocabulary, closer: bytes, must_answer: bool) -> None:
        self.vocabulary = vocabulary
        self._closer = closer
        self._must_answer = must_answer
        self._by_first_byte: defaultdict[bytes, list[int]] = defaultdict(list)
        for token_id, token in enumerate(vocabulary.tokens):
            self._by_first_byte[token[:1]].append(token_id)
        # All are made here, where a grammar is compiled: a step must not wait for them.
        ending = [i for i, token in enumerate(vocabulary.tokens) if closer[-1:] in token]
        self._thinking = [self._mask(self._barred(n, ending)) for n in range(len(closer))]

    @cached_property
    def everything(self) -> Bitmask:
        """The mask of all ids."""
        return self._mask(())

    def thinking(self, tail: bytes) -> Bitmask:
        """The mask of free thinking whose last bytes are tail."""
        return self._thinking[self._num_begun(tail)]

    def may_think(self, tail: bytes, token_id: int) -> bool:
        """Whether the mask of thinking has token_id."""
        mask = self.thinking(tail)
        return bool(mask[token_id // 32] >> np.uint32(token_id % 32) & np.uint32(1))

    def closer_ids(self, tail: bytes) -> list[int]:
        """The tokens that complete the closing mark behind tail."""
        num_begun = self._num_begun(tail)
        place = 0
        for index, token_id in enumerate(self._whole_closer_ids):
            if place == num_begun:
                return self._whole_closer_ids[index:]
            place += len(self.vocabulary.tokens[token_id])
        try:
            return self.vocabulary.encode(self._closer[num_begun:].decode())
        except UnicodeDecodeError:  # the rest begins inside a character: begin anew
            return self._whole_closer_ids

    def ids_along(self, mark: bytes, begun: bytes) -> list[int]:
        """The tokens that go on with mark, of which begun is there, or complete it."""
        rest = mark[len(begun) :]
        tokens = self.vocabulary.tokens
        return [
            i
            for i in self._by_first_byte[rest[:1]]
            if rest.startswith(tokens[i]) or tokens[i].startswith(rest)
        ]

    @cached_property
    def _whole_closer_ids(self) -> list[int]:
        name = self._closer.decode()
        control = [i for i, one in self.vocabulary.special.items() if one == name]
        single = control[:1] or [
            i for i in [self.vocabulary.text_ids.get(self._closer)] if i is not None
        ]
        return single or self.vocabulary.encode(name)

    def _num_begun(self, tail: bytes) -> int:
        """How many bytes of the closing mark the end of tail holds."""
        for length in range(min(len(self._closer) - 1, len(tail)), 0, -1):
            if tail.endswith(self._closer[:length]):
                return length
        return 0

    def _barred(self, num_begun: int, ending: list[int]) -> list[int]:
        """The ids that may not follow num_begun bytes of the closing mark.

        ending: the ids of tokens that can complete it.
        """
        if not self._must_answer:
            return []
        begun = self._closer[:num_begun]
        barred = list(self.vocabulary.end_ids)
        for token_id in ending:
            text = begun + self.vocabulary.tokens[token_id]
            _, found, rest = text.partition(self._closer)
            if found and rest.strip():
                barred.append(token_id)
        return barred

    def _mask(self, barred: Iterable[int]) -> Bitmask:
        bits = np.zeros(32 * self.vocabulary.bitmask_words, dtype=np.uint8)
        bits[: self.vocabulary.size] = 1
        bits[list(barred)] = 0
        return np.packbits(bits, bitorder="little").view(np.uint32)
