"""Whether a shape has no value at all, as far as that is plain.

Used to see that branches exclude each other (by a required constant, say). "No" only means that it
is not plain.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..matcher import GrammarError
from . import regex_match
from .arrays import Arrays
from .formulas import ALWAYS, Formula, conjunction
from .objects import Objects
from .regex_ast import Nothing, both
from .shapes import Shape

if TYPE_CHECKING:
    from .translation import Translation

_MAX_DEPTH = 4


def is_empty(shape: Shape, translation: Translation, depth: int = 0) -> bool:
    if shape.null or shape.booleans or shape.numbers:
        return False
    try:
        if not regex_match.is_empty(shape.strings):
            return False
    except GrammarError:
        return False
    return all(_no_array(case, translation, depth) for case in shape.arrays) and all(
        _no_object(case, translation, depth) for case in shape.objects
    )


def _no_array(case: Arrays, translation: Translation, depth: int) -> bool:
    required = {case.item(index) for index in range(min(case.low, len(case.prefix) + 1))}
    required.update(c.formula for c in case.contains if c.low)
    return any(_no_value(formula, translation, depth) for formula in required)


def _no_object(case: Objects, translation: Translation, depth: int) -> bool:
    return any(
        name in case.required and _no_value(formula, translation, depth)
        for name, formula in case.properties
    ) or any(
        all(
            _no_value(conjunction((formula, wanted)), translation, depth)
            for others, formula in case.rest
            if not isinstance(both((keys, others)), Nothing)
        )
        for keys, wanted in case.some
    )


def _no_value(formula: Formula, translation: Translation, depth: int) -> bool:
    if formula == ALWAYS or depth >= _MAX_DEPTH or translation.is_open(formula):
        return False
    try:
        return is_empty(translation.shape(formula), translation, depth + 1)
    except GrammarError:
        return False
