"""ReasoningSplitter: the text of an answer, told apart into thinking and the rest as it comes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from .styles import ReasoningStyle, Thinking


@dataclass(frozen=True, slots=True)
class Split:
    """New text of the thinking, and then of the answer."""

    reasoning: str = ""
    content: str = ""


class _State(Enum):
    BEFORE = auto()  # the opener may come
    THINKING = auto()
    AFTER = auto()  # the whitespace behind the closer is dropped
    CONTENT = auto()


class ReasoningSplitter:
    """Splits one answer, however it is cut into deltas.

    The marks belong to neither part, nor does the whitespace next to them. Thinking that never ends
    is thinking to the end.
    """

    def __init__(self, style: ReasoningStyle, start: Thinking) -> None:
        self._style = style
        self._is_open = start is Thinking.OPEN
        self._state = _State.CONTENT if start is Thinking.OVER else _State.BEFORE
        self._has_reasoning = False
        self._held = ""

    @property
    def is_thinking(self) -> bool:
        """Whether the text so far ends inside the thinking."""
        return self._state is _State.THINKING or (self._state is _State.BEFORE and self._is_open)

    def push(self, text: str) -> Split:
        """Return what is certain after text."""
        text, self._held = self._held + text, ""
        reasoning = ""
        if self._state is _State.BEFORE:
            text = self._read_opener(text)
        if self._state is _State.THINKING:
            reasoning, text = self._read_thinking(text)
        if self._state is _State.AFTER:
            text = text.lstrip()
            if text:
                self._state = _State.CONTENT
        return Split(reasoning, text if self._state is _State.CONTENT else "")

    def finish(self) -> Split:
        """Return what was held back."""
        held, self._held = self._held, ""
        if self.is_thinking:
            return Split(reasoning=held if self._has_reasoning else held.lstrip())
        return Split(content=held)

    def _read_opener(self, text: str) -> str:
        """Look for the opener at the beginning; return what is left to read."""
        opener = self._style.opener
        begun = text.lstrip()
        if begun.startswith(opener):
            self._state = _State.THINKING
            return begun[len(opener) :]
        if opener.startswith(begun):
            self._held = text
            return ""
        self._state = _State.THINKING if self._is_open else _State.CONTENT
        return text

    def _read_thinking(self, text: str) -> tuple[str, str]:
        """Return the thinking in text, and what follows its end."""
        if not self._has_reasoning:
            text = text.lstrip()
        closer = self._style.closer
        before, found, after = text.partition(closer)
        if found:
            self._state = _State.AFTER
            certain = before.rstrip()
        else:
            after = ""
            certain = text[: len(text) - _num_begun(text, closer)].rstrip()
            self._held = text[len(certain) :]
        self._has_reasoning = self._has_reasoning or bool(certain)
        return certain, after


def _num_begun(text: str, mark: str) -> int:
    """Length of the longest end of text that begins mark."""
    for length in range(min(len(mark) - 1, len(text)), 0, -1):
        if text.endswith(mark[:length]):
            return length
    return 0
