"""AnswerReader: what one choice's text means, piece by piece: thinking, content, calls.

Whole answers and streams are read by the same reader, so they cannot differ.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

from ..messages import FinishReason
from ..reasoning.splitter import ReasoningSplitter
from ..tool_calls.families import ToolFamily
from ..tool_calls.pieces import (
    ArgumentsPiece,
    CallPiece,
    ContentPiece,
    Piece,
    ToolCallParser,
    joined,
)
from .chat_thinking import ChatThinking


@dataclass(frozen=True, slots=True)
class ReasoningPiece:
    """Text of the thinking."""

    text: str


AnswerPiece: TypeAlias = ReasoningPiece | Piece


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """How the answers of one body are read; None: not looked for."""

    thinking: ChatThinking | None = None
    family: ToolFamily | None = None
    tool_names: frozenset[str] = frozenset()
    has_grammar: bool = False  # calls follow tool_grammar

    @property
    def separates_thinking(self) -> bool:
        """Whether thinking is told apart from content."""
        return self.thinking is not None and self.thinking.separates

    def new_call_id(self) -> str:
        """A fresh id of a call."""
        assert self.family is not None, "a call without tools"
        return self.family.new_call_id()

    def reader(self) -> AnswerReader:
        """A fresh reader of one choice."""
        thinking = self.thinking
        splitter = None
        if thinking is not None and thinking.separates:
            splitter = ReasoningSplitter(thinking.style, thinking.start)
        parser = None
        if self.family is not None and self.tool_names:
            parser = self.family.parser(self.tool_names, has_grammar=self.has_grammar)
        return AnswerReader(splitter, parser, thinking is None or thinking.streams)


class AnswerReader:
    """Reads the text of one choice as it comes."""

    def __init__(
        self,
        splitter: ReasoningSplitter | None,
        parser: ToolCallParser | None,
        streams_reasoning: bool = True,
    ) -> None:
        self._splitter = splitter
        self._parser = parser
        self._streams_reasoning = streams_reasoning
        self._held_reasoning: list[str] = []
        self._num_calls = 0

    def push(self, text: str) -> list[AnswerPiece]:
        """Return the pieces that are certain after text."""
        if self._splitter is None:
            return self._answer(text)
        split = self._splitter.push(text)
        pieces = self._reasoning(split.reasoning, self._splitter.is_thinking)
        return [*pieces, *self._answer(split.content)]

    def finish(self, finish: FinishReason) -> list[AnswerPiece]:
        """Return what was held back until the end."""
        pieces: list[AnswerPiece] = []
        if self._splitter is not None:
            split = self._splitter.finish()
            pieces += self._reasoning(split.reasoning, is_going_on=False)
            pieces += self._answer(split.content)
        if self._parser is not None:
            pieces += self._counted(self._parser.finish(was_cut=finish.type != "stop"))
        return pieces

    def finish_reason(self, finish: FinishReason) -> str:
        """OpenAI's reason: tool_calls if the answer ended after calls, all of them complete."""
        is_whole = self._parser is not None and not self._parser.has_incomplete_call
        return (
            "tool_calls" if finish.type == "stop" and self._num_calls and is_whole else finish.type
        )

    def _reasoning(self, text: str, is_going_on: bool) -> list[AnswerPiece]:
        if text:
            self._held_reasoning.append(text)
        if not self._held_reasoning or (is_going_on and not self._streams_reasoning):
            return []
        whole = "".join(self._held_reasoning)
        self._held_reasoning.clear()
        return [ReasoningPiece(whole)]

    def _answer(self, text: str) -> list[AnswerPiece]:
        if not text:
            return []
        if self._parser is None:
            return [ContentPiece(text)]
        return self._counted(self._parser.push(text))

    def _counted(self, pieces: list[Piece]) -> list[AnswerPiece]:
        self._num_calls += sum(isinstance(one, CallPiece) for one in pieces)
        return list(pieces)


def message_of(pieces: list[AnswerPiece], form: AnswerForm) -> dict[str, Any]:
    """The message of a whole answer; content is null where there are only calls or thinking."""
    answer = joined(one for one in pieces if not isinstance(one, ReasoningPiece))
    reasoning = "".join(one.text for one in pieces if isinstance(one, ReasoningPiece))
    has_other = bool(answer.calls or reasoning)
    message: dict[str, Any] = {
        "role": "assistant",
        "content": None if has_other and not answer.content else answer.content,
        "refusal": None,
    }
    if form.separates_thinking:
        message["reasoning_content"] = reasoning or None
    if answer.calls:
        message["tool_calls"] = [
            {
                "id": form.new_call_id(),
                "type": "function",
                "function": {"name": one.name, "arguments": one.arguments},
            }
            for one in answer.calls
        ]
    return message


def delta_of(piece: AnswerPiece, form: AnswerForm) -> dict[str, Any]:
    """The delta of a streamed choice that tells piece."""
    match piece:
        case ReasoningPiece(text):
            return {"reasoning_content": text}
        case ContentPiece(text):
            return {"content": text}
        case CallPiece(index, name):
            begun = {"name": name, "arguments": ""}
            call = {"id": form.new_call_id(), "type": "function", "function": begun}
            return {"tool_calls": [{"index": index, **call}]}
        case ArgumentsPiece(index, text):
            return {"tool_calls": [{"index": index, "function": {"arguments": text}}]}
