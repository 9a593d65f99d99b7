"""CallObjectReader: one call written as a JSON object, {"name": ..., "arguments": {...}}."""

from __future__ import annotations

import json
from collections.abc import Container
from enum import Enum, auto

from .json_cursor import JsonCursor

_NAME_KEYS = frozenset({"name", "function"})
_ARGUMENT_KEYS = frozenset({"arguments", "parameters"})
_OTHER_KEYS = frozenset({"type", "id"})  # written by some models; they say nothing new
_SPACE = " \t\r\n"


class _State(Enum):
    OPEN = auto()  # before {
    FIRST_KEY = auto()
    KEY = auto()
    IN_KEY = auto()
    COLON = auto()
    VALUE = auto()
    IN_VALUE = auto()
    COMMA = auto()
    DONE = auto()
    BROKEN = auto()


class CallObjectReader:
    """Reads one call object as its text arrives, its keys in any order.

    name is None until it was read; has_whole_arguments says that they have ended. Broken by
    anything but a call of one of names: bad JSON, an unknown or repeated key, arguments that are no
    object, no name.
    """

    def __init__(self, names: Container[str]) -> None:
        self.name: str | None = None
        self.has_whole_arguments = False
        self._names = names
        self._state = _State.OPEN
        self._is_bare = False  # only the arguments are read
        self._has_arguments = False  # begun at least
        self._key = ""
        self._cursor = JsonCursor()
        self._value = ""  # the key or value being read, unless it is streamed
        self._streams = False  # the value being read is the arguments object
        self._arguments: list[str] = []  # not yet taken

    @classmethod
    def of_arguments(cls, name: str, names: Container[str]) -> CallObjectReader:
        """A reader of the arguments object alone, of a call whose name was read before."""
        reader = cls(names)
        reader._is_bare = True
        reader._key = "arguments"
        reader._state = _State.VALUE
        if name in names:
            reader.name = name
        else:
            reader._state = _State.BROKEN
        return reader

    @property
    def is_call(self) -> bool:
        """Whether this is a call for certain: the name is known, and arguments have begun."""
        return self.name is not None and (self._has_arguments or self.is_done)

    @property
    def is_done(self) -> bool:
        """Whether the object has ended and is a call."""
        return self._state is _State.DONE

    @property
    def is_broken(self) -> bool:
        """Whether this is no call, or a call that cannot go on."""
        return self._state is _State.BROKEN

    def push(self, text: str, start: int) -> int:
        """Take text from start on; return where reading stopped: the end, done or broken."""
        place = start
        while place < len(text) and not self.is_done and not self.is_broken:
            match self._state:
                case _State.IN_KEY:
                    place = self._read(text, place)
                    if self._cursor.is_complete:
                        self._end_key()
                case _State.IN_VALUE:
                    place = self._read(text, place)
                    if self._cursor.is_complete:
                        self._end_value()
                case _:
                    place += self._step(text[place])
        return place

    def take_arguments(self) -> str:
        """Return the argument text that came since the last call."""
        text = "".join(self._arguments)
        self._arguments.clear()
        return text

    def _step(self, char: str) -> bool:
        """Look at one character between keys and values; return whether it was taken."""
        if char in _SPACE:
            return True
        match self._state, char:
            case _State.OPEN, "{":
                self._state = _State.FIRST_KEY
            case ((_State.KEY | _State.FIRST_KEY), '"'):
                return self._begin(_State.IN_KEY)
            case _State.COLON, ":":
                self._state = _State.VALUE
            case _State.VALUE, _:
                self._streams = char == "{" and self._key in _ARGUMENT_KEYS
                self._has_arguments |= self._streams
                return self._begin(_State.IN_VALUE)
            case _State.COMMA, ",":
                self._state = _State.KEY
            case _State.COMMA, "}":
                self._end()
            case _:
                self._state = _State.BROKEN
                return False
        return True

    def _begin(self, state: _State) -> bool:
        self._state, self._cursor, self._value = state, JsonCursor(), ""
        return False

    def _read(self, text: str, place: int) -> int:
        taken = self._cursor.push(text, place)
        if self._state is _State.IN_VALUE and self._streams:
            self._arguments.append(taken.text)
        else:
            self._value += taken.text
        if self._cursor.is_broken:
            self._state = _State.BROKEN
        return taken.end

    def _end_key(self) -> None:
        self._key = json.loads(self._value)
        is_again = (self._key in _NAME_KEYS and self.name is not None) or (
            self._key in _ARGUMENT_KEYS and self._has_arguments
        )
        is_known = (
            self._key in _NAME_KEYS or self._key in _ARGUMENT_KEYS or self._key in _OTHER_KEYS
        )
        self._state = _State.COLON if is_known and not is_again else _State.BROKEN

    def _end_value(self) -> None:
        self._state = _State.DONE if self._is_bare else _State.COMMA
        if self._key in _ARGUMENT_KEYS:
            self.has_whole_arguments = self._streams or self._take_quoted_arguments()
        elif self._key in _NAME_KEYS:
            name = json.loads(self._value)
            if isinstance(name, str) and name in self._names:
                self.name = name
            else:
                self._state = _State.BROKEN

    def _take_quoted_arguments(self) -> bool:
        """Take null, or an object that the model wrote inside a JSON string; else break off."""
        value = json.loads(self._value)
        if value is None:
            value = "{}"
        if isinstance(value, str) and _is_object(value):
            self._has_arguments = True
            self._arguments.append(value)
            return True
        self._state = _State.BROKEN
        return False

    def _end(self) -> None:
        if self.name is None:
            self._state = _State.BROKEN
            return
        if not self._has_arguments:
            self._arguments.append("{}")
            self.has_whole_arguments = True
        self._state = _State.DONE


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False
