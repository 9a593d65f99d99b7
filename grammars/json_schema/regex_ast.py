"""Regular languages of Unicode strings, closed under union, intersection and complement.

A Regex always describes whole strings (nothing is implicitly anchored or searched). The functions
below build them in a simplified form; the classes themselves are not meant to be called directly.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from . import charsets
from .charsets import Charset


class Regex:
    """One language. Compared by structure; the hash is kept, as nodes serve as keys of states."""

    __slots__ = ("_hash", "args", "is_pure")
    args: tuple[object, ...]
    is_pure: bool  # free of And and Not, hence never empty as a language

    def __init__(self, *args: object, is_pure: bool = True) -> None:
        self.args = args
        self.is_pure = is_pure
        self._hash = hash((type(self).__name__, args))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return (
            type(self) is type(other)
            and isinstance(other, Regex)
            and self._hash == other._hash
            and self.args == other.args
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}{self.args!r}"


class Nothing(Regex):
    """No string at all."""

    __slots__ = ()


class Chars(Regex):
    """One character of a set."""

    __slots__ = ("charset",)

    def __init__(self, charset: Charset) -> None:
        super().__init__(charset)
        self.charset = charset


class Words(Regex):
    """Some strings, in the order in which they were written."""

    __slots__ = ("words",)

    def __init__(self, words: tuple[str, ...]) -> None:
        super().__init__(words)
        self.words = words


class _Parts(Regex):
    __slots__ = ("parts",)

    def __init__(self, parts: tuple[Regex, ...], is_pure: bool | None = None) -> None:
        super().__init__(
            parts, is_pure=all(part.is_pure for part in parts) if is_pure is None else is_pure
        )
        self.parts = parts


class Seq(_Parts):
    """One part after the other."""

    __slots__ = ()


class Alt(_Parts):
    """Any of the parts."""

    __slots__ = ()


class And(_Parts):
    """All of the parts at once."""

    __slots__ = ()

    def __init__(self, parts: tuple[Regex, ...]) -> None:
        super().__init__(parts, is_pure=False)


class Not(Regex):
    """Every string that part is not."""

    __slots__ = ("part",)

    def __init__(self, part: Regex) -> None:
        super().__init__(part, is_pure=False)
        self.part = part


class Repeat(Regex):
    """part, from low to high times (None: without end)."""

    __slots__ = ("high", "low", "part")

    def __init__(self, part: Regex, low: int, high: int | None) -> None:
        super().__init__(part, low, high, is_pure=part.is_pure)
        self.part = part
        self.low = low
        self.high = high


NOTHING = Nothing()
EMPTY = Words(("",))
ANY_CHAR = Chars(charsets.ANY)
ALL = Repeat(ANY_CHAR, 0, None)


def chars(charset: Charset) -> Regex:
    return Chars(charset) if charset else NOTHING


def words(strings: Iterable[str]) -> Regex:
    unique = tuple(dict.fromkeys(strings))
    return Words(unique) if unique else NOTHING


def length(low: int, high: int | None) -> Regex:
    """Strings of low to high characters."""
    return repeat(ANY_CHAR, low, high)


def repeat(part: Regex, low: int, high: int | None) -> Regex:
    if high is not None and high < low:
        return NOTHING
    if isinstance(part, Nothing):
        return EMPTY if low == 0 else NOTHING
    if high == 0 or part == EMPTY:
        return EMPTY
    if low == 1 and high == 1:
        return part
    if isinstance(part, Repeat) and low in (0, 1) and high is None and part.low in (0, 1):
        if part.high is None or part.high == 1:  # (x*)+, (x+)*, (x?)*: one star is enough
            return repeat(part.part, min(low, part.low), None)
    return Repeat(part, low, high)


def seq(parts: Sequence[Regex]) -> Regex:
    flat: list[Regex] = []
    for part in parts:
        for piece in part.parts if isinstance(part, Seq) else (part,):
            if isinstance(piece, Nothing):
                return NOTHING
            if piece == EMPTY:
                continue
            if flat and _is_word(piece) and _is_word(flat[-1]):
                flat[-1] = Words((_the_word(flat[-1]) + _the_word(piece),))
            else:
                flat.append(piece)
    if not flat:
        return EMPTY
    return flat[0] if len(flat) == 1 else Seq(tuple(flat))


def alt(parts: Iterable[Regex]) -> Regex:
    strings: list[str] = []
    letters: list[Charset] = []
    others: dict[Regex, None] = {}
    for part in parts:
        for piece in part.parts if isinstance(part, Alt) else (part,):
            if piece == ALL:
                return ALL
            if isinstance(piece, Words):
                strings.extend(piece.words)
            elif isinstance(piece, Chars):
                letters.append(piece.charset)
            elif not isinstance(piece, Nothing):
                others[piece] = None
    known: list[Regex] = []
    if strings:
        known.append(words(strings))
    if letters:
        known.append(Chars(charsets.union(*letters)))
    known.extend(others)
    if not known:
        return NOTHING
    return known[0] if len(known) == 1 else Alt(tuple(known))


def inverse(part: Regex) -> Regex:
    if isinstance(part, Not):
        return part.part
    if isinstance(part, Nothing):
        return ALL
    return NOTHING if part == ALL else Not(part)


def both(parts: Iterable[Regex]) -> Regex:
    """Strings in every part. Known words are tested at once; lengths are folded where they can."""
    from .regex_match import matches  # the two describe one algebra; matching needs this module

    flat: dict[Regex, None] = {}
    for part in parts:
        for piece in part.parts if isinstance(part, And) else (part,):
            if isinstance(piece, Nothing):
                return NOTHING
            if piece != ALL:
                flat[piece] = None
    pieces = list(flat)
    for index, piece in enumerate(pieces):
        if isinstance(piece, Words):
            rest = pieces[:index] + pieces[index + 1 :]
            return words(w for w in piece.words if all(matches(other, w) for other in rest))
    pieces = _fold_repeats(pieces)
    if any(isinstance(piece, Nothing) or inverse(piece) in flat for piece in pieces):
        return NOTHING
    if not pieces:
        return ALL
    return pieces[0] if len(pieces) == 1 else And(tuple(pieces))


def _fold_repeats(pieces: list[Regex]) -> list[Regex]:
    """Join repetitions of one character: [a-z]+ and 3 to 5 characters is [a-z]{3,5}."""
    counted: list[Regex] = []
    others: list[Regex] = []
    for piece in pieces:
        is_counted = isinstance(piece, Chars) or (
            isinstance(piece, Repeat) and isinstance(piece.part, Chars)
        )
        (counted if is_counted else others).append(piece)
    while len(counted) > 1:
        joined = _joined(_counted(counted.pop()), _counted(counted.pop()))
        if joined == EMPTY or isinstance(joined, Nothing):
            return [both([joined, *counted, *others])]
        counted.append(joined)
    return [*counted, *others]


def _counted(piece: Regex) -> tuple[Charset, int, int | None]:
    if isinstance(piece, Repeat):
        assert isinstance(piece.part, Chars)
        return piece.part.charset, piece.low, piece.high
    assert isinstance(piece, Chars)
    return piece.charset, 1, 1


def _joined(left: tuple[Charset, int, int | None], right: tuple[Charset, int, int | None]) -> Regex:
    highs = [high for high in (left[2], right[2]) if high is not None]
    return repeat(
        chars(charsets.intersection(left[0], right[0])),
        max(left[1], right[1]),
        min(highs) if highs else None,
    )


def _is_word(piece: Regex) -> bool:
    return isinstance(piece, Words) and len(piece.words) == 1


def _the_word(piece: Regex) -> str:
    assert isinstance(piece, Words)
    return piece.words[0]
