"""PatternCompletions: what ends the string, or the one pattern, that a text breaks off in.

An open pattern (.*x.y.*) allows nearly everything at every place, so that no mask tells what is
missing. The automaton of the pattern does, from wherever the text stands in it.
"""

from __future__ import annotations

import re
from functools import cached_property
from itertools import islice

from .json_schema.regex_ast import NOTHING, Alt, And, Not, Regex, Repeat, Seq
from .json_schema.regex_match import derivative
from .matcher import GrammarError
from .prepared import PreparedForm, PreparedGrammar
from .shortest_text import shortest_text
from .terminal_regex import terminals_in, whole_pattern

MAX_TERMINALS = 60  # that are read
MAX_READ_CHARACTERS = 40_000  # of a grammar
MAX_OPEN_CHARACTERS = 1_000  # of the string that a text breaks off in
MAX_FOUND = 4

_PUNCTUATION = frozenset("{}[]:,")

# The longest beginning of a JSON text that ends outside of its strings.
_CLOSED = re.compile(r'(?:[^"]|"(?:[^"\\]|\\.)*+")*+', re.DOTALL)


class PatternCompletions:
    """For one grammar; its terminals are read at the first use."""

    def __init__(self, prepared: PreparedGrammar) -> None:
        self._prepared = prepared

    @cached_property
    def _terminals(self) -> list[Regex]:
        return _terminals(self._prepared)

    @cached_property
    def _open(self) -> list[Regex]:
        return [one for one in self._terminals if _is_open(one)]

    @cached_property
    def examples(self) -> list[str]:
        """A short text of each terminal: one of them may be what the grammar waits for."""
        found = (_end_of(regex, "") for regex in self._terminals)
        return list(dict.fromkeys(one for one in found if one))

    @cached_property
    def values(self) -> list[str]:
        """The examples without JSON's punctuation."""
        return [one for one in self.examples if not _PUNCTUATION.issuperset(one)]

    def after(self, text: str) -> list[str]:
        """Texts that may end what text breaks off in, the shortest first; [] if none is found."""
        closed = _CLOSED.match(text)
        assert closed is not None, "it matches nothing at least"
        found: dict[str, None] = {}
        string = text[closed.end() :]
        for opened in (text, string) if string and string != text else (text,):
            if len(opened) <= MAX_OPEN_CHARACTERS:
                for regex in self._open:
                    if end := _end_of(regex, opened):
                        found[end] = None
        return sorted(found, key=len)[:MAX_FOUND]


def _terminals(prepared: PreparedGrammar) -> list[Regex]:
    text = prepared.text[:MAX_READ_CHARACTERS]
    if prepared.form is PreparedForm.REGEX:
        found = whole_pattern(text)
        return [] if found is None else [found]
    if prepared.form is not PreparedForm.LARK:
        return []
    return list(islice(terminals_in(text), MAX_TERMINALS))


def _is_open(regex: Regex) -> bool:
    """Whether it has endless texts: others are followed letter by letter anyway."""
    match regex:
        case Repeat():
            return regex.high is None or _is_open(regex.part)
        case Seq() | Alt() | And():
            return any(map(_is_open, regex.parts))
        case Not():
            return True
        case _:
            return False


def _end_of(regex: Regex, opened: str) -> str | None:
    """The shortest text after which opened is in regex; None if there is none, or it is long."""
    try:
        for char in opened:
            regex = derivative(regex, ord(char))
            if regex == NOTHING:
                return None
        return shortest_text(regex)
    except (GrammarError, RecursionError):
        return None
