"""The seam of the tool call parsers: text goes in as it comes, pieces of the answer come out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol, TypeAlias


@dataclass(frozen=True, slots=True)
class ContentPiece:
    """Text for the user."""

    text: str


@dataclass(frozen=True, slots=True)
class CallPiece:
    """Call number index (from 0) begins."""

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class ArgumentsPiece:
    """More of the arguments of call number index, as JSON text."""

    index: int
    text: str


Piece: TypeAlias = ContentPiece | CallPiece | ArgumentsPiece


class ToolCallParser(Protocol):
    """Finds the calls in the text of one answer, however that is cut into deltas.

    Each call gives one CallPiece, then ArgumentsPieces: joined, they are a JSON object if the call
    is complete, else the beginning of one. Nothing that belongs to a call becomes content, nor does
    the whitespace around calls. What only looks like a call (bad JSON, a function that was not
    offered) is content.
    """

    def push(self, text: str) -> list[Piece]:
        """Return what is certain after text."""
        ...

    def finish(self, was_cut: bool) -> list[Piece]:
        """Return what was held back. was_cut: the answer ended before the model was done.

        A call that has begun stays as it is; a cut one without a name is dropped.
        """
        ...

    @property
    def has_incomplete_call(self) -> bool:
        """Whether a call began and its arguments never ended."""
        ...


@dataclass(slots=True)
class ParsedCall:
    """One call of a whole answer; arguments is JSON text."""

    name: str
    arguments: str = ""


@dataclass(slots=True)
class ParsedAnswer:
    """A whole answer, content and calls apart."""

    content: str
    calls: list[ParsedCall]


def parse_answer(parser: ToolCallParser, text: str, was_cut: bool = False) -> ParsedAnswer:
    """Parse text, a whole answer, with a fresh parser."""
    return joined([*parser.push(text), *parser.finish(was_cut)])


def joined(pieces: Iterable[Piece]) -> ParsedAnswer:
    """Put the pieces of one answer together."""
    content = []
    calls: list[ParsedCall] = []
    arguments: list[list[str]] = []
    for piece in pieces:
        match piece:
            case ContentPiece():
                content.append(piece.text)
            case CallPiece():
                calls.append(ParsedCall(piece.name))
                arguments.append([])
            case ArgumentsPiece():
                arguments[piece.index].append(piece.text)
    for call, parts in zip(calls, arguments, strict=True):
        call.arguments = "".join(parts)
    return ParsedAnswer("".join(content), calls)


def merged(pieces: Iterable[Piece]) -> list[Piece]:
    """Return pieces with neighbours of one kind joined: fewer, larger deltas."""
    result: list[Piece] = []
    for piece in pieces:
        last = result[-1] if result else None
        if isinstance(piece, ContentPiece) and isinstance(last, ContentPiece):
            result[-1] = ContentPiece(last.text + piece.text)
        elif (
            isinstance(piece, ArgumentsPiece)
            and isinstance(last, ArgumentsPiece)
            and piece.index == last.index
        ):
            result[-1] = ArgumentsPiece(last.index, last.text + piece.text)
        else:
            result.append(piece)
    return result
