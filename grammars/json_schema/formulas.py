"""Boolean combinations of schemas: what an instance at one place has to satisfy.

Formulas are values: equal ones are equal keys, so a place that has been worked out once, recursion
included, is found again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Always:
    """Any instance."""


@dataclass(frozen=True, slots=True)
class Never:
    """No instance."""


@dataclass(frozen=True, slots=True)
class Schema:
    """What the schema at a place of the document accepts (its number in Document)."""

    number: int


@dataclass(frozen=True, slots=True)
class Constant:
    """One JSON value, as canonical text (see values.py)."""

    text: str


@dataclass(frozen=True, slots=True)
class Negation:
    part: Formula


@dataclass(frozen=True, slots=True)
class Conjunction:
    parts: tuple[Formula, ...]


@dataclass(frozen=True, slots=True)
class Disjunction:
    parts: tuple[Formula, ...]


Formula: TypeAlias = Always | Never | Schema | Constant | Negation | Conjunction | Disjunction
ALWAYS = Always()
NEVER = Never()


def negation(part: Formula) -> Formula:
    if isinstance(part, Negation):
        return part.part
    if part == ALWAYS:
        return NEVER
    return ALWAYS if part == NEVER else Negation(part)


def conjunction(parts: Iterable[Formula]) -> Formula:
    flat: dict[Formula, None] = {}
    for part in parts:
        for piece in part.parts if isinstance(part, Conjunction) else (part,):
            if piece == NEVER:
                return NEVER
            if piece != ALWAYS:
                flat[piece] = None
    if any(negation(piece) in flat for piece in flat):
        return NEVER
    if not flat:
        return ALWAYS
    return next(iter(flat)) if len(flat) == 1 else Conjunction(tuple(flat))


def disjunction(parts: Iterable[Formula]) -> Formula:
    flat: dict[Formula, None] = {}
    for part in parts:
        for piece in part.parts if isinstance(part, Disjunction) else (part,):
            if piece == ALWAYS:
                return ALWAYS
            if piece != NEVER:
                flat[piece] = None
    if any(negation(piece) in flat for piece in flat):
        return ALWAYS
    if not flat:
        return NEVER
    return next(iter(flat)) if len(flat) == 1 else Disjunction(tuple(flat))


def implies(special: Formula, general: Formula) -> bool:
    """Whether the first plainly includes what the second asks for."""
    if general == ALWAYS or special in (NEVER, general):
        return True
    parts = special.parts if isinstance(special, Conjunction) else (special,)
    wanted = general.parts if isinstance(general, Conjunction) else (general,)
    if isinstance(general, Disjunction):
        return any(option in parts for option in general.parts)
    return all(part in parts for part in wanted)
