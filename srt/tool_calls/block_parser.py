"""BlockCallParser: calls as JSON objects in blocks, the form that most model families write.

A block is one object or a list of them, opened by a marker or by standing at the very beginning of
the answer. Which markers: BlockSyntax.
"""

from __future__ import annotations

import re
from collections.abc import Container
from dataclasses import dataclass
from enum import Enum, auto

from .call_object import CallObjectReader
from .pieces import ArgumentsPiece, CallPiece, ContentPiece, Piece, merged
from .text_watch import TextWatch

_SPACE = " \t\r\n"
_BARE_NAME = re.compile(r"[A-Za-z0-9_.\-]+")
_MAX_HEAD_CHARS = 256  # of NAME[CALL_ID]...[ARGS]


@dataclass(frozen=True, slots=True)
class BlockSyntax:
    """How blocks are marked.

    opener None and is_at_start: a block stands at the beginning of the answer or nowhere. closer
    None: a block ends with its last object. has_bare_names: an opener may be followed by
    NAME{arguments} or NAME[ARGS]{arguments}.
    """

    opener: str | None = None
    closer: str | None = None
    is_at_start: bool = False
    has_bare_names: bool = False


class _State(Enum):
    START = auto()  # nothing but whitespace so far, and a block may begin here
    TEXT = auto()
    HEAD = auto()  # after an opener
    BARE_NAME = auto()
    OBJECT = auto()
    LIST = auto()  # between the objects of a list
    TAIL = auto()  # after an object or list
    SKIP = auto()  # the rest of a call that broke off


class BlockCallParser:
    """A ToolCallParser for one BlockSyntax; names are those of the tools offered."""

    def __init__(self, syntax: BlockSyntax, names: Container[str]) -> None:
        self._syntax = syntax
        self._names = names
        self._watch = TextWatch(syntax.opener)
        self._state = _State.START if syntax.is_at_start else _State.TEXT
        self._is_in_list = False
        self._reader = CallObjectReader(names)
        self._has_begun = False  # the call being read was told
        self._raw = ""  # what was read and is neither told nor dropped: text, if it is no call
        self._bare_head = ""  # of NAME[ARGS], before the arguments
        self._block_has_call = False
        self._closer_seen = ""
        self._num_calls = 0
        self._has_broken = False
        self._is_after_call = False
        self._pieces: list[Piece] = []

    @property
    def has_incomplete_call(self) -> bool:
        """Whether a call began and its arguments never ended."""
        return self._has_broken or (self._has_begun and not self._reader.has_whole_arguments)

    def push(self, text: str) -> list[Piece]:
        """Return what is certain after text."""
        place = 0
        while place < len(text):
            match self._state:
                case _State.TEXT:
                    place = self._read_text(text, place)
                case _State.OBJECT:
                    place = self._read_object(text, place)
                case _State.SKIP:
                    place = self._skip(text, place)
                case _:
                    place += self._step(text[place])
        return self._take_pieces()

    def finish(self, was_cut: bool) -> list[Piece]:
        """Return what was held back; see ToolCallParser."""
        in_block = self._state in (_State.HEAD, _State.BARE_NAME, _State.OBJECT)
        if not (in_block and was_cut):
            self._add_content(self._raw)
        self._raw = ""
        self._add_content(self._watch.finish())
        return self._take_pieces()

    def _take_pieces(self) -> list[Piece]:
        pieces, self._pieces = merged(self._pieces), []
        return pieces

    def _read_text(self, text: str, place: int) -> int:
        watched = self._watch.push(text[place:], is_after_call=self._is_after_call)
        self._add_content(watched.content)
        if watched.marker_end is None:
            return len(text)
        self._open(watched.marker)
        return place + watched.marker_end

    def _open(self, raw: str) -> None:
        self._state = _State.HEAD
        self._raw = raw
        self._is_in_list = self._block_has_call = False

    def _step(self, char: str) -> bool:
        """Look at one character outside text and objects; return whether it was taken."""
        match self._state:
            case _State.START:
                return self._step_start(char)
            case _State.HEAD:
                return self._step_head(char)
            case _State.BARE_NAME:
                return self._step_bare_name(char)
            case _State.LIST:
                return self._step_list(char)
        return self._step_tail(char)

    def _step_start(self, char: str) -> bool:
        if char in _SPACE:
            self._raw += char
            return True
        raw, self._raw = self._raw, ""
        if char in "{[":
            self._open(raw)
        else:
            self._state = _State.TEXT
            self._read_text(raw, 0)
        return False

    def _step_head(self, char: str) -> bool:
        if char in _SPACE:
            self._raw += char
        elif char == "[":
            self._raw += char
            self._is_in_list = True
            self._begin_object()
        elif char == "{":
            self._begin_object()
            return False
        elif self._syntax.has_bare_names and _BARE_NAME.fullmatch(char):
            self._state = _State.BARE_NAME
            self._bare_head = ""
            return False
        else:
            self._give_up()
            return False
        return True

    def _step_bare_name(self, char: str) -> bool:
        if char != "{":
            self._bare_head += char
            self._raw += char
            if len(self._bare_head) > _MAX_HEAD_CHARS:
                self._give_up()
            return True
        name = _BARE_NAME.match(self._bare_head)
        assert name is not None, self._bare_head
        self._begin_object()
        self._reader = CallObjectReader.of_arguments(name[0], self._names)
        return False

    def _step_list(self, char: str) -> bool:
        if char == ",":
            self._begin_object()
        elif char == "]":
            self._state = _State.TAIL
        elif char not in _SPACE:
            self._state = _State.SKIP
            return False
        return True

    def _step_tail(self, char: str) -> bool:
        closer = self._syntax.closer
        if closer is not None and closer.startswith(self._closer_seen + char):
            self._closer_seen += char
            if self._closer_seen == closer:
                self._end_block()
            return True
        if self._closer_seen:  # not the closer after all
            lost, self._closer_seen = self._closer_seen, ""
            self._end_block()
            self._add_content(lost)
            return False
        if char == "{":
            self._begin_object()
            return False
        if char not in _SPACE and char not in ",;":
            self._end_block()
            return False
        return True

    def _end_block(self) -> None:
        self._closer_seen = ""
        self._raw = ""
        self._state = _State.TEXT

    def _begin_object(self) -> None:
        self._state = _State.OBJECT
        self._has_broken = self.has_incomplete_call
        self._reader = CallObjectReader(self._names)
        self._has_begun = False

    def _read_object(self, text: str, place: int) -> int:
        end = self._reader.push(text, place)
        if not self._has_begun:
            self._raw += text[place:end]
            if self._reader.is_call:
                assert self._reader.name is not None
                self._begin_call(self._reader.name)
        if self._has_begun and (arguments := self._reader.take_arguments()):
            self._pieces.append(ArgumentsPiece(self._num_calls - 1, arguments))
        if self._reader.is_broken:
            self._break_off()
        elif self._reader.is_done:
            self._state = _State.LIST if self._is_in_list else _State.TAIL
        return end

    def _begin_call(self, name: str) -> None:
        self._pieces.append(CallPiece(self._num_calls, name))
        self._num_calls += 1
        self._has_begun = self._block_has_call = self._is_after_call = True
        self._raw = ""

    def _break_off(self) -> None:
        has_end = self._syntax.closer is not None
        if self._has_begun or (self._block_has_call and has_end):
            self._state = _State.SKIP
            self._closer_seen = self._raw = ""
        else:
            self._give_up()

    def _skip(self, text: str, place: int) -> int:
        """Drop what follows a call that broke off, up to the closer."""
        closer = self._syntax.closer
        if closer is None:
            return len(text)
        seen = self._closer_seen + text[place:]
        found = seen.find(closer)
        if found < 0:
            self._closer_seen = seen[max(0, len(seen) - len(closer) + 1) :]
            return len(text)
        rest = len(seen) - found - len(closer)
        self._end_block()
        return len(text) - rest

    def _give_up(self) -> None:
        """What was read of the block is text."""
        raw, self._raw = self._raw, ""
        self._state = _State.TEXT
        self._add_content(raw)

    def _add_content(self, text: str) -> None:
        if text:
            self._pieces.append(ContentPiece(text))
            self._is_after_call = False
