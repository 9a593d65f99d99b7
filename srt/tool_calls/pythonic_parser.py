"""PythonicCallParser: an answer that is a list of calls, [f(a=1), g(b="x")].

The list stands at the beginning of the answer or nowhere. Arguments are told one by one, as soon as
each is complete: a half-read Python literal has no JSON form.
"""

from __future__ import annotations

import json
import re
from collections.abc import Container
from enum import Enum, auto

from .pieces import ArgumentsPiece, CallPiece, ContentPiece, Piece, merged
from .python_literal import json_of_literal

_SPACE = " \t\r\n"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.\-]*")
_KEYWORD = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_\-]*)\s*=")
_CLOSERS = {"(": ")", "[": "]", "{": "}"}


class _State(Enum):
    START = auto()
    NAME = auto()
    ARGUMENTS = auto()
    BETWEEN = auto()  # after a call
    TEXT = auto()
    SKIP = auto()  # the rest of a call that broke off


class PythonicCallParser:
    """A ToolCallParser; names are those of the tools offered."""

    def __init__(self, names: Container[str]) -> None:
        self._names = names
        self._state = _State.START
        self._raw: list[str] = []  # what is neither told nor dropped
        self._name = ""
        self._argument = _Argument()
        self._keys: set[str] = set()
        self._has_begun = False
        self._num_calls = 0
        self._num_complete = 0
        self._is_after_call = False
        self._pieces: list[Piece] = []

    @property
    def has_incomplete_call(self) -> bool:
        """Whether a call began and its arguments never ended."""
        return self._num_complete < self._num_calls

    def push(self, text: str) -> list[Piece]:
        """Return what is certain after text."""
        for place, char in enumerate(text):
            if self._state is _State.TEXT:
                self._add_content(text[place:])
                break
            self._take(char)
        return self._take_pieces()

    def finish(self, was_cut: bool) -> list[Piece]:
        """Return what was held back; see ToolCallParser."""
        in_call = self._state in (_State.NAME, _State.ARGUMENTS)
        if not (in_call and (was_cut or self._num_calls)):
            self._add_content("".join(self._raw))
        self._raw.clear()
        return self._take_pieces()

    def _take_pieces(self) -> list[Piece]:
        pieces, self._pieces = merged(self._pieces), []
        return pieces

    def _take(self, char: str) -> None:
        if self._state is _State.SKIP:
            return
        if not self._has_begun:
            self._raw.append(char)
        match self._state:
            case _State.START:
                self._take_start(char)
            case _State.NAME:
                self._take_name(char)
            case _State.ARGUMENTS:
                self._take_argument(char)
            case _State.BETWEEN:
                self._take_between(char)

    def _take_start(self, char: str) -> None:
        if char == "[":
            self._state, self._name = _State.NAME, ""
        elif char not in _SPACE:
            self._give_up()

    def _take_name(self, char: str) -> None:
        if char == "(":
            if self._name.strip() not in self._names:
                self._give_up()
                return
            self._state, self._argument = _State.ARGUMENTS, _Argument()
            self._keys.clear()
            return
        self._name += char
        if char not in _SPACE and not _NAME.fullmatch(self._name.strip()):
            self._give_up()

    def _take_argument(self, char: str) -> None:
        argument = self._argument
        if not argument.ends_with(char):
            argument.add(char)
            return
        text = argument.text
        is_empty = not text.strip()
        if not is_empty and not self._tell_argument(text):
            self._give_up()
        elif char == ")":
            self._end_call()
        elif is_empty:
            self._give_up()
        else:
            self._argument = _Argument()

    def _tell_argument(self, text: str) -> bool:
        keyword = _KEYWORD.match(text)
        if keyword is None or keyword[1] in self._keys:
            return False
        value = json_of_literal(text[keyword.end() :])
        if value is None:
            return False
        self._begin_call()
        separator = ", " if self._keys else "{"
        self._keys.add(keyword[1])
        self._add_arguments(f"{separator}{json.dumps(keyword[1])}: {value}")
        return True

    def _begin_call(self) -> None:
        if not self._has_begun:
            self._has_begun = self._is_after_call = True
            self._pieces.append(CallPiece(self._num_calls, self._name.strip()))
            self._num_calls += 1
        self._raw.clear()

    def _end_call(self) -> None:
        self._begin_call()
        self._add_arguments("}" if self._keys else "{}")
        self._num_complete += 1
        self._state = _State.BETWEEN

    def _take_between(self, char: str) -> None:
        if char == ",":
            self._state, self._name, self._has_begun = _State.NAME, "", False
        elif char == "]":
            self._state = _State.TEXT
        elif char not in _SPACE:
            self._state = _State.SKIP

    def _give_up(self) -> None:
        """What was read is text; after a call that was told, it is the broken rest of the list."""
        raw = "".join(self._raw)
        self._raw.clear()
        if self._num_calls:
            self._state = _State.SKIP
        else:
            self._state = _State.TEXT
            self._add_content(raw)

    def _add_arguments(self, text: str) -> None:
        self._pieces.append(ArgumentsPiece(self._num_calls - 1, text))

    def _add_content(self, text: str) -> None:
        if self._is_after_call:
            text = text.lstrip()
        if text:
            self._pieces.append(ContentPiece(text))
            self._is_after_call = False


class _Argument:
    """The text of one argument, up to the comma or bracket that ends it."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._closers: list[str] = []
        self._quote: str | None = None
        self._is_escaped = False

    @property
    def text(self) -> str:
        """All of it so far."""
        return "".join(self._parts)

    def ends_with(self, char: str) -> bool:
        """Whether char stands after the argument."""
        return self._quote is None and not self._closers and char in ",)"

    def add(self, char: str) -> None:
        """Take one character of the argument."""
        self._parts.append(char)
        if self._quote is not None:
            if self._is_escaped:
                self._is_escaped = False
            elif char == "\\":
                self._is_escaped = True
            elif char == self._quote:
                self._quote = None
        elif char in "\"'":
            self._quote = char
        elif char in _CLOSERS:
            self._closers.append(_CLOSERS[char])
        elif self._closers and char == self._closers[-1]:
            self._closers.pop()
