"""Sets of JSON values, type by type.

The six types are disjoint, so a boolean operation on sets of values is that operation on each type
by itself. Numbers, arrays and objects are kept as cases: any of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TypeVar

from ..matcher import GrammarError
from . import arrays, numbers, objects
from .arrays import ANY_ARRAY, Arrays
from .limits import MAX_ALTERNATIVES
from .numbers import ANY_NUMBER, Numbers
from .objects import ANY_OBJECT, Objects
from .regex_ast import ALL, NOTHING, Nothing, Regex, alt, both, inverse
from .work import spend

Case = TypeVar("Case")


@dataclass(frozen=True, slots=True)
class Shape:
    """What is allowed of each type."""

    null: bool = False
    booleans: frozenset[bool] = frozenset()
    numbers: tuple[Numbers, ...] = ()
    strings: Regex = NOTHING
    arrays: tuple[Arrays, ...] = ()
    objects: tuple[Objects, ...] = ()

    @property
    def is_plainly_empty(self) -> bool:
        return not (
            self.null
            or self.booleans
            or self.numbers
            or self.arrays
            or self.objects
            or not isinstance(self.strings, Nothing)
        )

    @property
    def has_objects_only(self) -> bool:
        """Whether nothing else than objects is allowed, and some may be."""
        return bool(self.objects) and replace(self, objects=()).is_plainly_empty


EMPTY_SHAPE = Shape()
ANY_SHAPE = Shape(True, frozenset((False, True)), (ANY_NUMBER,), ALL, (ANY_ARRAY,), (ANY_OBJECT,))


def union(shapes: Iterable[Shape], *, keep_all: bool = False) -> Shape:
    """Values in any of the shapes. keep_all: cases that others cover stay (they differ in what
    they have seen)."""
    all_shapes = list(shapes)
    if not keep_all and ANY_SHAPE in all_shapes:
        return ANY_SHAPE
    return Shape(
        any(shape.null for shape in all_shapes),
        frozenset(value for shape in all_shapes for value in shape.booleans),
        _cases((c for s in all_shapes for c in s.numbers), None if keep_all else ANY_NUMBER),
        alt(shape.strings for shape in all_shapes),
        _cases((c for s in all_shapes for c in s.arrays), None if keep_all else ANY_ARRAY),
        _cases((c for s in all_shapes for c in s.objects), None if keep_all else ANY_OBJECT),
    )


def meet(left: Shape, right: Shape) -> Shape:
    """Values in both."""
    if left == ANY_SHAPE or right == ANY_SHAPE:
        return right if left == ANY_SHAPE else left
    return Shape(
        left.null and right.null,
        left.booleans & right.booleans,
        _pairs(left.numbers, right.numbers, lambda a, b: _optional(numbers.meet(a, b))),
        both((left.strings, right.strings)),
        _pairs(left.arrays, right.arrays, lambda a, b: _optional(arrays.meet(a, b))),
        _pairs(left.objects, right.objects, objects.meet, objects.covers),
    )


def complement(shape: Shape) -> Shape:
    """All other values. Raises GrammarError where there is no way to say it."""
    other_numbers: tuple[Numbers, ...] = (ANY_NUMBER,)
    for number_case in shape.numbers:
        other_numbers = _pairs(
            other_numbers,
            tuple(numbers.complement(number_case)),
            lambda a, b: _optional(numbers.meet(a, b)),
        )
    other_arrays: tuple[Arrays, ...] = (ANY_ARRAY,)
    for array_case in shape.arrays:
        other_arrays = _pairs(
            other_arrays,
            tuple(arrays.complement(array_case)),
            lambda a, b: _optional(arrays.meet(a, b)),
        )
    other_objects: tuple[Objects, ...] = (ANY_OBJECT,)
    for object_case in shape.objects:
        other_objects = _pairs(
            other_objects, tuple(objects.complement(object_case)), objects.meet, objects.covers
        )
    return Shape(
        not shape.null,
        frozenset((False, True)) - shape.booleans,
        other_numbers,
        inverse(shape.strings),
        other_arrays,
        other_objects,
    )


def map_objects(shape: Shape, change: Callable[[Objects], Objects | None]) -> Shape:
    changed = (change(case) for case in shape.objects)
    return replace(shape, objects=tuple(case for case in changed if case is not None))


def map_arrays(shape: Shape, change: Callable[[Arrays], Arrays | None]) -> Shape:
    changed = (change(case) for case in shape.arrays)
    return replace(shape, arrays=tuple(case for case in changed if case is not None))


def _optional(case: Case | None) -> list[Case]:
    return [] if case is None else [case]


def _pairs(
    left: tuple[Case, ...],
    right: tuple[Case, ...],
    meet: Callable[[Case, Case], list[Case]],
    covers: Callable[[Case, Case], bool] | None = None,
) -> tuple[Case, ...]:
    spend(20 * len(left) * len(right))
    found = dict.fromkeys(case for a in left for b in right for case in meet(a, b))
    if covers is not None and len(left) > 1 and len(right) > 1 and len(found) > 2:
        return _cases(_uncovered(list(found), covers), None)
    return _cases(found, None)


def _uncovered(cases: list[Case], covers: Callable[[Case, Case], bool]) -> list[Case]:
    """The cases that no other one includes."""
    spend(2 * len(cases) * len(cases))
    kept: list[Case] = []
    for case in cases:
        if any(covers(other, case) for other in kept):
            continue
        kept = [other for other in kept if not covers(case, other)]
        kept.append(case)
    return kept


def _cases(cases: Iterable[Case], universal: Case | None) -> tuple[Case, ...]:
    unique = tuple(dict.fromkeys(cases))
    if universal is not None and universal in unique:
        return (universal,)
    if len(unique) > MAX_ALTERNATIVES:
        raise GrammarError(f"more than {MAX_ALTERNATIVES} alternatives of one type")
    return unique
