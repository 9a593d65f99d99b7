"""What a state executes one after the other: expressions, taken apart."""

from __future__ import annotations

from dataclasses import dataclass

from .expressions import Gen, Select
from .promise import Promise
from .transcript import Transcript
from .variables import Variable


@dataclass(frozen=True, slots=True)
class AddText:
    """Go on with text."""

    text: str


@dataclass(frozen=True, slots=True)
class OpenRole:
    """Begin a message; call_id is that of the call that a tool's message answers."""

    role: str
    call_id: str | None = None


@dataclass(frozen=True, slots=True)
class CloseRole:
    """End the open message."""


class ScopeMark:
    """Where a var_scope began, once that is known."""

    __slots__ = ("length",)

    def __init__(self) -> None:
        self.length = 0


@dataclass(frozen=True, slots=True)
class OpenScope:
    """Note the place where a var_scope begins."""

    mark: ScopeMark


@dataclass(frozen=True, slots=True)
class CloseScope:
    """Set variable to the text since mark."""

    mark: ScopeMark
    variable: Variable


@dataclass(frozen=True, slots=True)
class Call:
    """Let the model write; variable gets the value."""

    op: Gen | Select
    variable: Variable


@dataclass(frozen=True, slots=True)
class Split:
    """Give branches the transcript up to here, after committing it if there are several."""

    transcript: Promise[Transcript]
    num_branches: int


@dataclass(frozen=True, slots=True)
class Adopt:
    """Begin with the transcript of the state that this one is a branch of."""

    transcript: Promise[Transcript]


Step = AddText | OpenRole | CloseRole | OpenScope | CloseScope | Call | Split | Adopt


def fail_step(step: Step, error: BaseException) -> None:
    """Tell those who wait for what step would have made that it will not be."""
    if isinstance(step, Call | CloseScope):
        step.variable.fail(error)
    elif isinstance(step, Split) and not step.transcript.done():
        step.transcript.set_exception(error)
