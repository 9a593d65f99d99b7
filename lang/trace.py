"""What a program is made of, as a run of it with placeholders in the place of values shows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from .expressions import Gen, Select
from .transcript import Message, Prompt, whole_words


@dataclass(frozen=True, slots=True)
class TextPart:
    """Text that is the same in every run, as far as the trace can tell."""

    text: str


@dataclass(frozen=True, slots=True)
class ValuePart:
    """Text that an argument of the program or an earlier variable gives."""

    kind: Literal["argument", "variable"]
    name: str


@dataclass(frozen=True, slots=True)
class OutputPart:
    """Where the model goes on, and with what parameters."""

    op: Gen | Select


@dataclass(frozen=True, slots=True)
class RolePart:
    """A message, and what it is made of."""

    role: str
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class ForkPart:
    """Branches that begin here."""

    branches: tuple[tuple[Part, ...], ...]


Part: TypeAlias = TextPart | ValuePart | OutputPart | RolePart | ForkPart


@dataclass(frozen=True, slots=True)
class Trace:
    """The parts of a program in order, and what its function returned.

    It took one way through the program: where a program reads a variable and goes on accordingly,
    another run may take another. str() shows it a line for each part.
    """

    parts: tuple[Part, ...]
    ret_value: Any = None

    @property
    def outputs(self) -> list[Gen | Select]:
        """All outputs, those of branches too, in the order of the text."""
        return list(_outputs(self.parts))

    @property
    def prefix(self) -> Prompt:
        """What the prompts of all runs begin with, up to its last whole word."""
        messages: list[Message] = []
        for index, part in enumerate(self.parts):
            if not isinstance(part, RolePart):
                return Prompt("", tuple(messages), "user") if messages else _plain(self.parts)
            text, is_whole = _constant(part.parts)
            if not is_whole:
                return Prompt(text, tuple(messages), part.role)
            if index + 1 == len(self.parts):
                return Prompt(text, tuple(messages), part.role)
            messages.append(Message(part.role, text))
        return Prompt("")

    @property
    def prefix_text(self) -> str:
        """prefix of a program without roles, as pin_prefix takes it; "" with roles."""
        return "" if self.prefix.open_role is not None else self.prefix.text

    @property
    def prefix_messages(self) -> list[dict[str, Any]]:
        """The whole messages of prefix, as pin_prefix takes them; none without roles."""
        return [one.wire() for one in self.prefix.messages]

    def __str__(self) -> str:
        return "\n".join(_lines(self.parts, ""))


def _plain(parts: tuple[Part, ...]) -> Prompt:
    return Prompt(_constant(parts)[0])


def _constant(parts: tuple[Part, ...]) -> tuple[str, bool]:
    """The constant text that parts begin with, and whether there is nothing else."""
    text = ""
    for one in parts:
        if isinstance(one, ValuePart):
            return whole_words(text), False  # a word that goes on would become other tokens
        if not isinstance(one, TextPart):
            return text, False
        text += one.text
    return text, True


def _outputs(parts: Iterable[Part]) -> Iterator[Gen | Select]:
    for one in parts:
        if isinstance(one, OutputPart):
            yield one.op
        elif isinstance(one, RolePart):
            yield from _outputs(one.parts)
        elif isinstance(one, ForkPart):
            for branch in one.branches:
                yield from _outputs(branch)


def _lines(parts: Iterable[Part], indent: str) -> Iterator[str]:
    for one in parts:
        match one:
            case TextPart(text):
                yield f"{indent}text {text!r}"
            case ValuePart(kind, name):
                yield f"{indent}{kind} {name}"
            case OutputPart(Gen() as op):
                fields = {**op.sampling.explicit(), "type": op.value_type.name}
                shown = ", ".join(f"{name}={value!r}" for name, value in fields.items())
                yield f"{indent}gen {op.name}: {shown}"
            case OutputPart(Select() as op):
                yield f"{indent}select {op.name}: {list(op.choices)}"
            case RolePart(role, own):
                yield f"{indent}{role}:"
                yield from _lines(own, indent + "  ")
            case ForkPart(branches):
                yield f"{indent}fork into {len(branches)}:"
                for number, branch in enumerate(branches):
                    yield f"{indent}  branch {number}:"
                    yield from _lines(branch, indent + "    ")
