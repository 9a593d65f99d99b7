"""What can be added to a state: text, gen, select, roles, and sums of them.

Expressions are values: they hold what is asked for and know nothing of backends or states, so that
one may be added to many states.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from .choices import ChoicesMethod
from .errors import ProgramError
from .sampling import Sampling
from .tools import ToolCall, ToolOffer
from .value_types import TEXT, ValueType


class Expression:
    """Base of all; `+` with another expression or a string makes a Sum."""

    __slots__ = ()

    def __add__(self, other: object) -> Sum:
        return Sum((self, as_expression(other)))

    def __radd__(self, other: object) -> Sum:
        return Sum((as_expression(other), self))


@dataclass(frozen=True, slots=True)
class Text(Expression):
    """Text as it is."""

    text: str


@dataclass(frozen=True, slots=True)
class LogprobRequest:
    """Which log-probabilities the meta info of a gen has."""

    num_top: int = 0
    prompt_start: int | None = None
    with_text: bool = False


@dataclass(frozen=True, slots=True)
class Gen(Expression):
    """What the model writes next, kept under name."""

    name: str | None
    sampling: Sampling = field(default_factory=Sampling)
    value_type: ValueType = TEXT
    logprobs: LogprobRequest | None = None
    tools: ToolOffer | None = None


@dataclass(frozen=True, slots=True)
class Select(Expression):
    """The one of choices that the model finds most likely here, kept under name."""

    name: str | None
    choices: tuple[str, ...]
    method: ChoicesMethod
    early_exit: bool = False


@dataclass(frozen=True, slots=True)
class Role(Expression):
    """A message of role with body as its content."""

    role: str
    body: Expression


@dataclass(frozen=True, slots=True)
class ToolResult(Expression):
    """A message with what a call of the model has given."""

    call: ToolCall
    text: str


@dataclass(frozen=True, slots=True)
class Sum(Expression):
    """Parts, one after the other."""

    parts: tuple[Expression, ...]


def as_expression(value: object) -> Expression:
    """value as an expression; raises ProgramError for what is neither text nor an expression."""
    if isinstance(value, Expression):
        return value
    if isinstance(value, str):
        return Text(value)
    hint = "; write str(...) around it" if isinstance(value, int | float | bool) else ""
    raise ProgramError(
        f"a value of type {type(value).__name__} was added to a state; it takes text, gen, select "
        f"and roles{hint}"
    )


def flattened(expression: Expression) -> Iterator[Expression]:
    """The parts of nested sums, in order."""
    waiting: list[Any] = [expression]
    while waiting:
        one = waiting.pop()
        if isinstance(one, Sum):
            waiting.extend(reversed(one.parts))
        else:
            yield one
