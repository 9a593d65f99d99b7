"""JsonCursor: follows one JSON value as its text arrives, and sees at once where it goes wrong."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum, auto

MAX_DEPTH = 128  # deeper arguments are no call

_PLAIN = re.compile(r'[^"\\\x00-\x1f]+')
_SPACE = frozenset(" \t\r\n")
_ESCAPES = frozenset('"\\/bfnrt')
_HEX = frozenset("0123456789abcdefABCDEF")
_NUMBER_CHARS = frozenset("+-0123456789.eE")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_NUMBER_START = re.compile(  # every beginning of a number
    r"-?(?:(?:0|[1-9][0-9]*)(?:\.(?:[0-9]+(?:[eE](?:[+-]?[0-9]*)?)?)?|[eE](?:[+-]?[0-9]*)?)?)?"
)
_LITERALS = ("true", "false", "null")


class _Expect(Enum):
    VALUE = auto()
    FIRST_VALUE = auto()  # or the end of an empty array
    KEY = auto()
    FIRST_KEY = auto()  # or the end of an empty object
    COLON = auto()
    COMMA = auto()  # or the end of the array or object
    NOTHING = auto()


@dataclass(frozen=True, slots=True)
class Taken:
    """Where reading stopped, and the JSON text of what was read."""

    end: int
    text: str


class JsonCursor:
    """Reads one value; what it has taken is always the beginning of a JSON text.

    is_complete: the value has ended. is_broken: the next character could not go on with it; nothing
    more is taken. A control character inside a string is taken and written as its escape, because
    models do write line breaks there.
    """

    def __init__(self) -> None:
        self.is_complete = False
        self.is_broken = False
        self._expect = _Expect.VALUE
        self._closers: list[str] = []
        self._in_string = False
        self._is_key = False
        self._escape: str | None = None  # what came after a backslash
        self._scalar = ""  # a number or literal so far

    def push(self, text: str, start: int = 0) -> Taken:
        """Take text from start on, up to what follows the complete value or breaks it."""
        written: list[str] = []
        place = start
        while place < len(text) and not self.is_complete and not self.is_broken:
            if self._in_string:
                place = self._take_string(text, place, written)
                continue
            char = text[place]
            if self._scalar:
                if self._continues_scalar(char):
                    self._scalar += char
                    written.append(char)
                    place += 1
                else:
                    self._end_scalar()
                continue
            if self._take(char):
                written.append(char)
                place += 1
            else:
                self.is_broken = True
        return Taken(place, "".join(written))

    def _take_string(self, text: str, place: int, written: list[str]) -> int:
        if self._escape is not None:
            return self._take_escape(text, place, written)
        if plain := _PLAIN.match(text, place):
            written.append(plain[0])
            return plain.end()
        char = text[place]
        if char == "\\":
            self._escape = ""
            written.append(char)
        elif char == '"':
            self._in_string = False
            written.append(char)
            if self._is_key:
                self._expect = _Expect.COLON
            else:
                self._end_value()
        else:
            written.append(f"\\u{ord(char):04x}")
        return place + 1

    def _take_escape(self, text: str, place: int, written: list[str]) -> int:
        char = text[place]
        assert self._escape is not None
        if self._escape == "":
            if char not in _ESCAPES and char != "u":
                self.is_broken = True
                return place
            self._escape = "u" if char == "u" else None
        elif char in _HEX:
            self._escape = self._escape + char if len(self._escape) < 4 else None
        else:
            self.is_broken = True
            return place
        written.append(char)
        return place + 1

    def _continues_scalar(self, char: str) -> bool:
        longer = self._scalar + char
        if self._scalar[0] in _NUMBER_CHARS:
            return char in _NUMBER_CHARS and _NUMBER_START.fullmatch(longer) is not None
        return any(one.startswith(longer) for one in _LITERALS)

    def _end_scalar(self) -> None:
        is_whole = self._scalar in _LITERALS or _NUMBER.fullmatch(self._scalar) is not None
        self._scalar = ""
        if is_whole:
            self._end_value()
        else:
            self.is_broken = True

    def _end_value(self) -> None:
        self._expect = _Expect.COMMA if self._closers else _Expect.NOTHING
        self.is_complete = not self._closers

    def _take(self, char: str) -> bool:
        """Take one character outside strings, numbers and literals, if it may stand here."""
        if char in _SPACE:
            return True
        match self._expect:
            case _Expect.COLON:
                self._expect = _Expect.VALUE
                return char == ":"
            case _Expect.KEY | _Expect.FIRST_KEY:
                if char == '"':
                    self._in_string = self._is_key = True
                    return True
                return self._expect is _Expect.FIRST_KEY and self._close(char)
            case _Expect.COMMA:
                if char == ",":
                    is_object = self._closers[-1] == "}"
                    self._expect = _Expect.KEY if is_object else _Expect.VALUE
                    return True
                return self._close(char)
            case _Expect.FIRST_VALUE if char == "]":
                return self._close(char)
        return self._begin_value(char)

    def _begin_value(self, char: str) -> bool:
        if char in "{[":
            self._closers.append("}" if char == "{" else "]")
            self._expect = _Expect.FIRST_KEY if char == "{" else _Expect.FIRST_VALUE
            return len(self._closers) <= MAX_DEPTH
        if char == '"':
            self._in_string, self._is_key = True, False
            return True
        if char in "-0123456789tfn":
            self._scalar = char
            return True
        return False

    def _close(self, char: str) -> bool:
        if not self._closers or char != self._closers[-1]:
            return False
        self._closers.pop()
        self._end_value()
        return True
