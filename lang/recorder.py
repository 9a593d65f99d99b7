"""Runs a program without a model: every value is a placeholder, and what is added is recorded."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeAlias, cast

from .backends.protocol import Abilities, Backend
from .choices import ChoiceScore, decide
from .errors import ProgramError
from .expressions import Gen, Select
from .interpreter import Interpreter
from .promise import Promise
from .run import Run
from .sampling import FIELDS, Sampling
from .steps import AddText, Adopt, Call, CloseRole, OpenRole, Split, Step
from .trace import ForkPart, OutputPart, Part, RolePart, TextPart, ValuePart
from .transcript import Transcript
from .variables import Variable

MAX_OUTPUTS = 1000

# Marks around the name of a placeholder in text: of the private use area, which texts do not have.
_MARKS = {"argument": ("\ue0a0", "\ue0a1"), "variable": ("\ue0a2", "\ue0a3")}
_MARKED = re.compile("\ue0a0([^\ue0a1]*)\ue0a1|\ue0a2([^\ue0a3]*)\ue0a3")
# Of text: these would change the name between the marks, or cut it.
_CHANGES_LETTERS = frozenset(
    "capitalize casefold encode lower partition replace rpartition rsplit split splitlines "
    "swapcase title translate upper".split()
)
# A mark without its other half, or as JSON and repr write it.
_BROKEN = re.compile("[\ue0a0-\ue0a3]|\\\\ue0a[0-3]")
_OF_TYPE: dict[str, Any] = {"int": 0, "float": 0.0, "bool": False}


class Placeholder(str):
    """The text of a value that is not known: its name between two marks.

    Attributes that text has not are placeholders too, as those of an instance of a class would be.
    What would look into the text raises ProgramError: it would find the name instead of the value.
    """

    __slots__ = ("_kind", "_name")
    _kind: str
    _name: str

    def __new__(cls, kind: str, name: str) -> Placeholder:
        """The value called name, an argument or a variable."""
        first, last = _MARKS[kind]
        made = super().__new__(cls, f"{first}{name}{last}")
        made._kind, made._name = kind, name
        return made

    def __bool__(self) -> bool:
        return True

    def __len__(self) -> int:
        raise self._unknown("its length")

    def __iter__(self) -> NoReturn:
        raise self._unknown("what it is made of")

    def __getitem__(self, key: object) -> NoReturn:
        raise self._unknown("a part of it")

    def __getattribute__(self, name: str) -> Any:
        if name in _CHANGES_LETTERS:
            raise self._unknown(f"its {name}()")
        return super().__getattribute__(name)

    def _unknown(self, what: str) -> ProgramError:
        remedy = "; give it to trace" if self._kind == "argument" else ""
        return ProgramError(
            f"the {self._kind} {self._name!r} has no value in a trace, and the program asks for "
            f"{what}{remedy}"
        )

    def __getattr__(self, name: str) -> Placeholder:
        if name.startswith("__"):
            raise AttributeError(name)
        return Placeholder(self._kind, f"{self._name}.{name}")


class Recording:
    """A run of which nothing is computed. backend, if given, is what the program must suit."""

    def __init__(self, backend: Backend | None, defaults: Sampling) -> None:
        # Only the name and the abilities of a run's backend are asked for before a call.
        suited = _Anything() if backend is None else backend
        self.run = Run(cast(Backend, suited), defaults)
        self.run.new_recorder = self._new_recorder
        self.num_outputs = 0
        # By what the branches wait for; held here, because an id is only unique while it lives.
        self.forks: dict[int, tuple[Promise[Transcript], _OpenFork]] = {}
        self._states: list[_Recorder] = []

    def parts(self) -> tuple[Part, ...]:
        """What the program's own state is made of."""
        return _closed(self._states[0].nodes) if self._states else ()

    def _new_recorder(self) -> Interpreter:
        recorder = _Recorder(self)
        self._states.append(recorder)
        return recorder


@dataclass(frozen=True, slots=True)
class _Anything:
    """What is no backend, and could do all of it."""

    name: str = "a trace"
    abilities: Abilities = field(default_factory=lambda: Abilities(frozenset(FIELDS)))


@dataclass(frozen=True, slots=True)
class _OpenRole:
    role: str
    nodes: list[_Node]


@dataclass(frozen=True, slots=True)
class _OpenFork:
    branches: list[list[_Node]]


_Node: TypeAlias = Part | _OpenRole | _OpenFork


class _Recorder(Interpreter):
    """Executes steps at once, with placeholders for what a model would write."""

    def __init__(self, recording: Recording) -> None:
        super().__init__(recording.run)
        self.nodes: list[_Node] = []
        self._here = self.nodes
        self._recording = recording

    def submit(self, step: Step) -> None:
        """Record step."""
        match step:
            case AddText(text):
                step = AddText(str.__str__(text))  # a placeholder's own text, and no placeholder
                self._here.extend(_parts_of(step.text))
            case OpenRole(role):
                self._enter(role)
            case CloseRole():
                self._here = self.nodes
            case Call(op, variable):
                self._answer(op, variable)
            case Split(transcript):
                fork = _OpenFork([])
                self._recording.forks[id(transcript)] = (transcript, fork)
                self._here.append(fork)
                transcript.set_result(self.transcript.copy())
            case Adopt(transcript):
                self._adopt(transcript)
        self._execute_text(step)

    def _enter(self, role: str) -> None:
        opened = _OpenRole(role, [])
        self._here.append(opened)
        self._here = opened.nodes

    def _adopt(self, transcript: Promise[Transcript]) -> None:
        self.transcript = transcript.result().copy()
        self._recording.forks[id(transcript)][1].branches.append(self.nodes)
        prompt = self.transcript.prompt()
        if prompt.open_role is not None:  # the branch goes on inside a message
            self._enter(prompt.open_role)

    def _answer(self, op: Gen | Select, variable: Variable) -> None:
        self._recording.num_outputs += 1
        if self._recording.num_outputs > MAX_OUTPUTS:
            raise ProgramError(
                f"the trace has {MAX_OUTPUTS} outputs and no end: a loop of the program seems to "
                "wait for what a placeholder never is"
            )
        self._here.append(OutputPart(op))
        text = Placeholder("variable", op.name or "output")
        self.transcript.add(text)
        if isinstance(op, Select):
            variable.set(op.choices[0], _scores_of(op))
            return
        value = _OF_TYPE.get(op.value_type.name, text)
        meta = {"finish_reason": {"type": "stop"}, **({"tool_calls": []} if op.tools else {})}
        num_samples = op.sampling.over(self._recording.run.defaults).n or 1
        if num_samples > 1:
            variable.set([value] * num_samples, [meta] * num_samples)
        else:
            variable.set(value, meta)


def _scores_of(op: Select) -> dict[str, Any]:
    """What decides for the first choice, as placeholders are read to have it."""
    return decide(op.method, [ChoiceScore((0,), (0.0,), (0.0,)) for _ in op.choices]).meta


def _parts_of(text: str) -> Iterator[Part]:
    rest = _MARKED.sub("", text)
    if _BROKEN.search(rest):
        raise ProgramError(
            f"the trace cannot follow what became of a value in {rest[:80]!r}: the program takes "
            "it apart or encodes it; give trace the argument"
        )
    place = 0
    for found in _MARKED.finditer(text):
        if found.start() > place:
            yield TextPart(text[place : found.start()])
        argument, variable = found.groups()
        if argument is not None:
            yield ValuePart("argument", argument)
        else:
            yield ValuePart("variable", variable)
        place = found.end()
    if place < len(text):
        yield TextPart(text[place:])


def _closed(nodes: list[_Node]) -> tuple[Part, ...]:
    parts: list[Part] = []
    for one in nodes:
        if isinstance(one, _OpenRole):
            parts.append(RolePart(one.role, _closed(one.nodes)))
        elif isinstance(one, _OpenFork):
            parts.append(ForkPart(tuple(_closed(branch) for branch in one.branches)))
        elif isinstance(one, TextPart) and parts and isinstance(parts[-1], TextPart):
            parts[-1] = TextPart(parts[-1].text + one.text)
        else:
            parts.append(one)
    return tuple(parts)
