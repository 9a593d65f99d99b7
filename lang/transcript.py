"""What a state has said so far, as text and as messages, and the prompt that follows from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .tools import ToolCall

MIN_SHARED_CHARS = 64  # a shorter prefix costs a call more than it saves


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation: also calls, of the assistant, or the call that it answers."""

    role: str
    content: str
    calls: tuple[ToolCall, ...] = ()
    call_id: str | None = None

    def wire(self) -> dict[str, Any]:
        """The message in OpenAI's form."""
        wire: dict[str, Any] = {"role": self.role, "content": self.content}
        if self.calls:
            wire["content"] = self.content or None
            wire["tool_calls"] = [one.wire() for one in self.calls]
        if self.call_id is not None:
            wire["tool_call_id"] = self.call_id
        return wire


@dataclass(frozen=True, slots=True)
class Prompt:
    """What the model goes on from: plain text, or messages and the beginning of one more.

    open_role is the role of the message that text begins; None for plain text.
    """

    text: str
    messages: tuple[Message, ...] = ()
    open_role: str | None = None

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to go on from."""
        return self.open_role is None and not self.text


class Transcript:
    """The text of a state; it changes only by what its state executes."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._messages: list[Message] = []
        self._open_role: str | None = None
        self._open_pieces: list[str] = []
        self._open_calls: tuple[ToolCall, ...] = ()
        self._open_call_id: str | None = None

    @property
    def text(self) -> str:
        """All text, in the order of the program, without marks of roles."""
        return "".join(self._pieces)

    @property
    def length(self) -> int:
        """How many pieces there are; text_since takes it."""
        return len(self._pieces)

    def text_since(self, length: int) -> str:
        """The text that was added since there were length pieces."""
        return "".join(self._pieces[length:])

    @property
    def messages(self) -> list[Message]:
        """The messages, the open one last."""
        if self._open_role is None:
            return list(self._messages)
        content = "".join(self._open_pieces)
        opened = Message(self._open_role, content, self._open_calls, self._open_call_id)
        return [*self._messages, opened]

    def add(self, text: str) -> None:
        """Go on with text."""
        self._pieces.append(text)
        if self._open_role is not None:
            self._open_pieces.append(text)

    def call(self, calls: tuple[ToolCall, ...]) -> None:
        """The open message also has calls."""
        self._open_calls += calls

    def open(self, role: str, call_id: str | None = None) -> None:
        """Begin a message; call_id is that of the call that a tool's message answers."""
        assert self._open_role is None, self._open_role
        self._open_role, self._open_call_id = role, call_id

    def close(self) -> None:
        """End the open message."""
        assert self._open_role is not None
        self._messages = self.messages
        self._open_role, self._open_pieces = None, []
        self._open_calls, self._open_call_id = (), None

    def prompt(self) -> Prompt:
        """What the model goes on from now."""
        if self._open_role is None:
            return Prompt(self.text)
        return Prompt("".join(self._open_pieces), tuple(self._messages), self._open_role)

    def beginning(self) -> Prompt:
        """What the prompts of all that goes on from here begin with.

        Between two messages the next is taken to be the one whose turn it is.
        """
        if self._open_role is not None or not self._messages:
            return self.prompt()
        last = self._messages[-1]
        if last.calls:  # results come next, whose messages cannot stand open
            return Prompt("", tuple(self._messages[:-1]), "assistant")
        role = "user" if last.role == "assistant" else "assistant"
        return Prompt("", tuple(self._messages), role)

    def copy(self) -> Transcript:
        """An equal transcript that changes on its own."""
        other = Transcript()
        other._pieces = list(self._pieces)
        other._messages = list(self._messages)
        other._open_role = self._open_role
        other._open_pieces = list(self._open_pieces)
        other._open_calls, other._open_call_id = self._open_calls, self._open_call_id
        return other


def shared_prefix(one: Prompt, other: Prompt) -> Prompt | None:
    """The beginning that both have, if it is worth a call of its own."""
    if (one.open_role is None) != (other.open_role is None):
        return None
    if one.open_role is None:
        text = _shared_words(one.text, other.text)
        return Prompt(text) if len(text) >= MIN_SHARED_CHARS else None
    first, second = _opened(one), _opened(other)
    num_equal = 0
    while num_equal < min(len(first), len(second)) and first[num_equal] == second[num_equal]:
        num_equal += 1
    if num_equal == min(len(first), len(second)):
        num_equal -= 1  # the last one of the shorter is open: the model goes on in it
    a, b = first[num_equal], second[num_equal]
    text = _shared_words(a.content, b.content) if a.role == b.role else ""
    shared = Prompt(text, tuple(first[:num_equal]), a.role)
    num_chars = len(text) + sum(len(message.content) for message in shared.messages)
    return shared if a.role == b.role and num_chars >= MIN_SHARED_CHARS else None


def _opened(prompt: Prompt) -> list[Message]:
    assert prompt.open_role is not None
    return [*prompt.messages, Message(prompt.open_role, prompt.text)]


def _shared_words(one: str, other: str) -> str:
    """The common beginning, up to the end of its last whole word.

    A word that goes on differently would become other tokens.
    """
    length = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        length += 1
    if length == len(one) == len(other):
        return one
    return whole_words(one[:length])


def whole_words(text: str) -> str:
    """text up to the end of its last word that is surely whole: a space follows it."""
    length = len(text)
    while length > 0 and not text[length - 1].isspace():
        length -= 1
    return text[:length].rstrip()
