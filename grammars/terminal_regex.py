"""terminals_in: what the terminals of a Lark grammar match, as Regexes to compute with.

Reads what is written here and most of what users write. A guess does no harm: what comes of it is
tried on the engine's own matcher.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

from .json_schema.regex_ast import Regex, alt, both, inverse, repeat, seq, words
from .json_schema.regex_parser import parse_pattern
from .matcher import GrammarError

MAX_CHARACTERS = 4_000  # of a pattern: 5 us to read each of them
MAX_ALL_CHARACTERS = 6_000  # of all that are read
_MAX_DEPTH = 40

_TOKEN = re.compile(
    r"""\s*(?:/(?P<regex>(?:[^/\\\n]|\\.)+)/
    |(?P<text>"(?:[^"\\\n]|\\.)*")
    |(?P<count>[*+?]|\{\d+(?:,\d*)?\})
    |(?P<sign>[()&|~])
    |(?P<other>[^\s/"(){}&|~*+?]+|.))""",
    re.VERBOSE,
)
_BRACED = re.compile(r"(\\\\)|\\x\{([0-9a-fA-F]{1,6})\}")
_ANY = re.compile(r"(\\\\)|\(\?s:\.\)")

_Token: TypeAlias = tuple[str, str]
_OPEN, _CLOSE = ("sign", "("), ("sign", ")")


def terminals_in(grammar: str) -> Iterator[Regex]:
    """The patterns, and the groups that combine some to one terminal, in their order.

    Each once, until MAX_ALL_CHARACTERS were read.
    """
    tokens = [(one.lastgroup or "", one[one.lastgroup or 0]) for one in _TOKEN.finditer(grammar)]
    ends = _ends_of_combinations(tokens)
    seen: set[tuple[_Token, ...]] = set()
    index = num_read = 0
    while index < len(tokens) and num_read < MAX_ALL_CHARACTERS:
        part = tuple(tokens[index : ends.get(index, index + 1)])
        index += len(part)
        if part in seen or (len(part) == 1 and part[0][0] not in ("regex", "text")):
            continue
        seen.add(part)
        num_read += sum(len(value) for _, value in part)
        found = _read(part)
        if found is not None:
            yield found


def _ends_of_combinations(tokens: list[_Token]) -> dict[int, int]:
    """Where groups begin and end that combine patterns by & or ~, and hold nothing else."""
    ends: dict[int, int] = {}
    opened: list[tuple[int, int, int]] = []
    num_others = num_signs = 0
    for index, (kind, value) in enumerate(tokens):
        num_others += kind == "other"
        num_signs += kind == "sign" and value in "&~"
        if (kind, value) == _OPEN:
            opened.append((index, num_others, num_signs))
        elif (kind, value) == _CLOSE and opened:
            start, others_before, signs_before = opened.pop()
            if num_others == others_before and num_signs > signs_before:
                ends[start] = index + 1
    return ends


def _read(tokens: Sequence[_Token]) -> Regex | None:
    if sum(len(value) for _, value in tokens) > MAX_CHARACTERS:
        return None
    try:
        return _Reader(tokens).whole()
    except (GrammarError, ValueError, RecursionError):
        return None


def whole_pattern(pattern: str) -> Regex | None:
    """The strings that pattern matches from end to end; None if it cannot be read."""
    if len(pattern) > MAX_CHARACTERS:
        return None
    pattern = _BRACED.sub(lambda m: m[1] or f"\\u{{{m[2]}}}", pattern)
    pattern = _ANY.sub(lambda m: m[1] or r"[\s\S]", pattern)
    try:
        return parse_pattern(f"^(?:{pattern})$", own=True)
    except (GrammarError, RecursionError):
        return None


class _Reader:
    def __init__(self, tokens: Sequence[_Token]) -> None:
        self._tokens = [*tokens, ("end", "")]
        self._index = 0
        self._depth = 0

    def whole(self) -> Regex:
        found = self._options()
        if self._tokens[self._index][0] != "end":
            raise ValueError(self._tokens[self._index][1])
        return found

    def _options(self) -> Regex:
        return self._joined("|", self._conjunction, alt)

    def _conjunction(self) -> Regex:
        return self._joined("&", self._sequence, both)

    def _joined(
        self, sign: str, part: Callable[[], Regex], join: Callable[[list[Regex]], Regex]
    ) -> Regex:
        parts = [part()]
        while self._takes(sign):
            parts.append(part())
        return join(parts)

    def _sequence(self) -> Regex:
        parts = [self._item()]
        while self._tokens[self._index][1] not in ("|", "&", ")", ""):
            parts.append(self._item())
        return seq(parts)

    def _item(self) -> Regex:
        if self._takes("~"):
            return inverse(self._item())
        kind, value = self._tokens[self._index]
        self._index += 1
        if kind == "regex":
            found = whole_pattern(value)
            if found is None:
                raise ValueError(value)
        elif kind == "text":
            found = words((json.loads(value),))
        elif value == "(":
            found = self._group()
        else:
            raise ValueError(value)
        while self._tokens[self._index][0] == "count":
            found = repeat(found, *_counts(self._tokens[self._index][1]))
            self._index += 1
        return found

    def _group(self) -> Regex:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise ValueError("nested too deeply")
        found = self._options()
        if not self._takes(")"):
            raise ValueError("no )")
        self._depth -= 1
        return found

    def _takes(self, sign: str) -> bool:
        found = self._tokens[self._index] == ("sign", sign)
        self._index += found
        return found


def _counts(text: str) -> tuple[int, int | None]:
    simple: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
    if text in simple:
        return simple[text]
    low, comma, high = text[1:-1].partition(",")
    return int(low), int(high) if high else (None if comma else int(low))
