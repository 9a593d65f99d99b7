"""Deciding membership and emptiness of a Regex by derivatives (Brzozowski, 1964).

Linear in the text and never backtracking: patterns come from users.
"""

from __future__ import annotations

from functools import lru_cache

from ..matcher import GrammarError
from . import charsets
from .charsets import Charset
from .regex_ast import (
    ALL,
    EMPTY,
    NOTHING,
    Alt,
    And,
    Chars,
    Not,
    Nothing,
    Regex,
    Repeat,
    Seq,
    Words,
    alt,
    both,
    inverse,
    repeat,
    seq,
    words,
)
from .work import spend

MAX_STATES = 1_000  # visited while looking for one member; each costs some 50 us
MAX_LETTERS = 300  # characters that a state has to tell apart
MAX_SIGNATURES = 200_000  # sets of characters times the places where any of them begins or ends


def matches(regex: Regex, text: str) -> bool:
    """Whether text is in the language."""
    if regex == ALL:
        return True
    if isinstance(regex, Words):
        return text in regex.words
    if isinstance(regex, Not):
        return not matches(regex.part, text)
    spend(1 + len(text) // 16)
    for char in text:
        regex = derivative(regex, ord(char))
        if isinstance(regex, Nothing):
            return False
    return accepts_empty(regex)


def is_empty(regex: Regex) -> bool:
    """Whether the language has no string. Raises GrammarError where that is too hard to tell."""
    if regex.is_pure:
        return isinstance(regex, Nothing)
    if _is_endless_but_for_words(regex):
        return False
    letters = representatives(regex)
    seen = {regex}
    queue = [regex]
    for state in queue:  # grows while it is walked: shortest strings first
        if accepts_empty(state):
            return False
        for letter in letters:
            following = derivative(state, letter)
            if following.is_pure and not isinstance(following, Nothing):
                return False
            if not isinstance(following, Nothing) and following not in seen:
                seen.add(following)
                queue.append(following)
        if len(seen) > MAX_STATES:
            raise GrammarError("this combination of string constraints is too complex")
    return True


def _is_endless_but_for_words(regex: Regex) -> bool:
    """Whether it is an endless language without some words: the common case, and never empty."""
    parts = regex.parts if isinstance(regex, And) else (regex,)
    rest = [p for p in parts if not (isinstance(p, Not) and isinstance(p.part, Words))]
    return not rest or (len(rest) == 1 and rest[0].is_pure and _is_endless(rest[0]))


def _is_endless(regex: Regex) -> bool:
    if isinstance(regex, Repeat):
        return regex.high is None or _is_endless(regex.part)
    return isinstance(regex, (Seq, Alt)) and any(map(_is_endless, regex.parts))


def accepts_empty(regex: Regex) -> bool:
    match regex:
        case Words():
            return "" in regex.words
        case Seq() | And():
            return all(accepts_empty(part) for part in regex.parts)
        case Alt():
            return any(accepts_empty(part) for part in regex.parts)
        case Repeat():
            return regex.low == 0 or accepts_empty(regex.part)
        case Not():
            return not accepts_empty(regex.part)
        case _:
            return False


@lru_cache(maxsize=20_000)
def derivative(regex: Regex, letter: int) -> Regex:
    """What may follow the letter."""
    spend()
    match regex:
        case Chars():
            return EMPTY if charsets.contains(regex.charset, letter) else NOTHING
        case Words():
            first = chr(letter)
            return words(word[1:] for word in regex.words if word.startswith(first))
        case Seq():
            return _after_sequence(regex.parts, letter)
        case Alt():
            return alt(derivative(part, letter) for part in regex.parts)
        case And():
            return both(derivative(part, letter) for part in regex.parts)
        case Not():
            return inverse(derivative(regex.part, letter))
        case Repeat():
            left = None if regex.high is None else regex.high - 1
            following = repeat(regex.part, max(regex.low - 1, 0), left)
            return seq([derivative(regex.part, letter), following])
        case _:
            return NOTHING


def _after_sequence(parts: tuple[Regex, ...], letter: int) -> Regex:
    options: list[Regex] = []
    for index, part in enumerate(parts):
        options.append(seq([derivative(part, letter), *parts[index + 1 :]]))
        if not accepts_empty(part):
            break
    return alt(options)


def representatives(regex: Regex) -> list[int]:
    """One letter for each set of letters that the language cannot tell apart.

    Raises GrammarError where there are too many.
    """
    sets: dict[Charset, None] = {}
    _collect_sets(regex, sets)
    cuts = sorted(
        {0, *(cut for charset in sets for low, high in charset for cut in (low, high + 1))}
    )
    if len(sets) * len(cuts) > MAX_SIGNATURES:
        raise GrammarError("this combination of string constraints is too complex")
    found: dict[tuple[bool, ...], int] = {}
    for cut in cuts:
        if charsets.contains(charsets.ANY, cut):
            found.setdefault(tuple(charsets.contains(charset, cut) for charset in sets), cut)
    if len(found) > MAX_LETTERS:
        raise GrammarError("this combination of string constraints is too complex")
    return list(found.values())


def _collect_sets(regex: Regex, sets: dict[Charset, None]) -> None:
    match regex:
        case Chars():
            sets[regex.charset] = None
        case Words():
            for letter in set("".join(regex.words)):
                sets[((ord(letter), ord(letter)),)] = None
        case Seq() | Alt() | And():
            for part in regex.parts:
                _collect_sets(part, sets)
        case Not() | Repeat():
            _collect_sets(regex.part, sets)
        case _:
            pass
