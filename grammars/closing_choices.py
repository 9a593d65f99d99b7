"""ClosingChoices: which tokens bring a text nearer to its end, of one vocabulary."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from .closing_hints import USUAL_HINTS
from .matcher import Bitmask
from .vocabulary import Vocabulary

_Ids: TypeAlias = npt.NDArray[np.int64]

ALTERNATIVES = 2  # other choices offered where one is not clearly best
CIRCLES = 4  # times that the same choice comes up before others than the usual are made
NUM_FILLERS = 500  # of the longest words, tried where text must be filled in


@dataclass(frozen=True, slots=True)
class RankedTokens:
    """The best token, and others that might lead to a shorter end."""

    first: int | None
    others: Sequence[int] = ()


class ClosingChoices:
    """Ranks the legal tokens of a mask."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        ids = vocabulary.text_ids
        self._tokens = vocabulary.tokens
        self._end_ids = vocabulary.end_ids
        brackets = _pure(ids, b'"}]', first=b"}]")
        strings = [t for t in _pure(ids, b'"}]', first=b'"') if t[1:2] in (b"}", b"]")]
        after_text = [b'":', b'","', b'",', b'"']
        self._closing_text = _known(ids, [*strings, *after_text])
        # Without what opens the next string at once: the place would be the same as before.
        self._leaving_text = _known(ids, [*strings, b'":', b'",', b'"'])
        self._closing = _known(ids, [*brackets, b'""', *strings, *after_text, b',"', b","])
        self._sure = frozenset(_known(ids, [*brackets, *strings, b'""']).tolist())
        self._brackets = _known(ids, brackets)
        self._values = _known(ids, b"0 1 2 3 4 5 6 7 8 9 null true false [] {}".split())
        words = sorted((t for t in ids if t.isascii() and t.isalnum()), key=_long_first)
        self._words = _known(ids, words[:NUM_FILLERS])
        self.usual_hints = [vocabulary.encode(text) for text in USUAL_HINTS]
        self._fillers = _known(ids, words[:NUM_FILLERS] + [t for t in words if len(t) <= 2])

    def end(self, mask: Bitmask) -> int | None:
        """An end token if one is legal."""
        return next((i for i in self._end_ids if mask[i >> 5] >> (i & 31) & 1), None)

    def ranked(self, mask: Bitmask, num_unchanged: int, num_seen: int) -> RankedTokens:
        """The tokens to try, each with a first byte of its own.

        num_unchanged: for how many steps the mask has been this one; what closes something would
        have changed it. num_seen: how often it was met before, so that the same choice is not
        tried for ever.
        """
        if self.is_text(mask):
            return self._ranked_in_text(mask, num_unchanged, num_seen)
        found: list[int] = []
        if not num_unchanged:
            found = _legal_of(self._closing, mask)
            if found and found[0] in self._sure:
                return RankedTokens(found[0])
            found += _legal_of(self._values, mask)
        if len(found) <= ALTERNATIVES:
            found += self._longest_by_first_byte(mask, num_seen)
        return self._several(found)

    def is_open_text(self, mask: Bitmask) -> bool:
        """Whether nearly any text may follow, but nothing that ends it: something is missing."""
        return self.is_text(mask) and not _legal_of(self._closing_text, mask)

    def can_close(self, mask: Bitmask) -> bool:
        """Whether a bracket that closes something may follow."""
        return bool(_legal_of(self._brackets, mask))

    def is_text(self, mask: Bitmask) -> bool:
        """Whether nearly any word may follow."""
        return 2 * len(_legal_of(self._words, mask)) > len(self._words)

    def _ranked_in_text(self, mask: Bitmask, num_unchanged: int, num_seen: int) -> RankedTokens:
        closing: list[int] = []
        if num_unchanged < 2:
            is_new = not num_unchanged and num_seen < CIRCLES
            closing = _legal_of(self._closing_text if is_new else self._leaving_text, mask)
        return RankedTokens((closing or _legal_of(self._fillers, mask))[0])

    def _several(self, found: Iterable[int]) -> RankedTokens:
        distinct = _by_first_byte(self._tokens, found)
        first = next(distinct, None)
        others = [other for other, _ in zip(distinct, range(ALTERNATIVES), strict=False)]
        return RankedTokens(first, others)

    def _longest_by_first_byte(self, mask: Bitmask, num_seen: int) -> list[int]:
        best: dict[int, int] = {}
        for i in legal_ids(mask):
            token = self._tokens[i]
            first = token[0] if token else -1
            if first not in best or _promise(token) > _promise(self._tokens[best[first]]):
                best[first] = i
        ordered = sorted(best.values(), key=lambda i: _opens(self._tokens[i]))
        # The same choice again and again may be a loop (a chain of optional parts): take turns.
        turn = num_seen % len(ordered) if ordered else 0
        return ordered[turn:] + ordered[:turn]


def legal_ids(mask: Bitmask) -> list[int]:
    """The ids whose bits are set, ascending; quick where they are few."""
    words = np.flatnonzero(mask)
    bits = np.unpackbits(mask[words].view(np.uint8), bitorder="little").reshape(-1, 32)
    rows, columns = np.nonzero(bits)
    ids: list[int] = (words[rows] * 32 + columns).tolist()
    return ids


@lru_cache(maxsize=4)
def closing_choices(vocabulary: Vocabulary) -> ClosingChoices:
    """The choices of vocabulary, made at the first call."""
    return ClosingChoices(vocabulary)


def _long_first(token: bytes) -> tuple[int, bytes]:
    return -len(token), token


def _promise(token: bytes) -> int:
    """The more of a text the better, but no array is begun that could be empty."""
    return 1000 - len(token) if token[:1] == b"[" else len(token)


def _opens(token: bytes) -> tuple[bool, bool, bool, bytes]:
    """Sort key: separators, then text, then what opens something, spaces last."""
    return token[:1] in b" \t\r\n", token[:1] in b"{[", token[:1] not in b",:", token


def _pure(ids: dict[bytes, int], alphabet: bytes, first: bytes) -> list[bytes]:
    """The tokens of these characters only that begin with one of first, longest first."""
    return sorted((t for t in ids if t[0] in first and not t.strip(alphabet)), key=_long_first)


def _known(ids: dict[bytes, int], tokens: Iterable[bytes]) -> _Ids:
    return np.array([ids[t] for t in tokens if t in ids], np.int64)


def _legal_of(ids: _Ids, mask: Bitmask) -> list[int]:
    bits = (mask[ids >> 5] >> (ids & 31).astype(np.uint32)) & 1
    legal: list[int] = ids[bits != 0].tolist()
    return legal


def _by_first_byte(tokens: Sequence[bytes], ids: Iterable[int]) -> Iterator[int]:
    seen: set[bytes] = set()
    for i in ids:
        if tokens[i][:1] not in seen:
            seen.add(tokens[i][:1])
            yield i
