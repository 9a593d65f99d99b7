"""Formulas to shapes: what the schema of a place, or a combination of places, accepts.

Each formula is worked out once. A shape speaks of its children by formulas again, so a recursive
schema is a finite table. Keywords are taken in the order in which they are written, which is the
order in which properties come out.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import replace
from itertools import combinations

from ..matcher import GrammarError
from . import arrays, limits, objects, shapes
from .array_keywords import NAMES as ARRAY_NAMES
from .array_keywords import arrays_of
from .arrays import Arrays
from .documents import Document, Place
from .emptiness import is_empty
from .errors import InvalidSchema, UnsupportedKeyword
from .formulas import (
    Always,
    Conjunction,
    Constant,
    Disjunction,
    Formula,
    Negation,
    Never,
    Schema,
    disjunction,
)
from .keywords import Keywords
from .numbers import ANY_NUMBER, INTEGERS
from .object_keywords import NAMES as OBJECT_NAMES
from .object_keywords import objects_of, with_keys_in, with_name, without_name
from .objects import Objects, unseen
from .places import CONSTRAINTS, formula_at
from .regex_ast import ALL
from .scalar_keywords import NUMBER_NAMES, STRING_NAMES, numbers_of, strings_of
from .schema_text import JsonValue
from .shapes import ANY_SHAPE, EMPTY_SHAPE, Shape
from .values import shape_of_text, shape_of_values

_UNEVALUATED = frozenset(("unevaluatedProperties", "unevaluatedItems"))
_OF_TAGS = frozenset("const enum type title description default examples $comment".split())
_MAX_EVALUATING_BRANCHES = 6  # of an anyOf under unevaluated*: every subset of them is a case


class Translation:
    """Works out the formulas of one document.

    dropped: keywords, as (pointer of the place, name), that are taken as absent.
    """

    def __init__(self, document: Document, dropped: Set[tuple[str, str]]) -> None:
        self.document = document
        self.dropped = dropped
        self._known: dict[tuple[Formula, bool], Shape] = {}
        self._open: set[tuple[Formula, bool]] = set()
        self.num_enum_values = 0

    def shape(self, formula: Formula, seeing: bool = False) -> Shape:
        """What the formula accepts. seeing: cases carry which keys and items were evaluated."""
        key = (formula, seeing)
        known = self._known.get(key)
        if known is not None:
            return known
        if key in self._open:
            raise InvalidSchema("a schema refers to itself without anything in between")
        if len(self._known) > limits.MAX_RULES:
            raise GrammarError(f"more than {limits.MAX_RULES} combinations of sub-schemas")
        self._open.add(key)
        try:
            shape = self._worked_out(formula, seeing)
        finally:
            self._open.discard(key)
        self._known[key] = shape
        return shape

    def is_open(self, formula: Formula) -> bool:
        """Whether the formula is being worked out right now."""
        return (formula, False) in self._open

    def _worked_out(self, formula: Formula, seeing: bool) -> Shape:
        match formula:
            case Always():
                return ANY_SHAPE
            case Never():
                return EMPTY_SHAPE
            case Constant():
                return shape_of_text(formula.text)
            case Schema():
                return self._of_place(self.document.place(formula.number), seeing)
            case Negation():
                return shapes.complement(self.shape(formula.part))
            case Conjunction():
                found = ANY_SHAPE
                for part in formula.parts:
                    found = shapes.meet(found, self.shape(part, seeing))
                return found
            case Disjunction():
                return shapes.union(
                    [self.shape(part, seeing) for part in formula.parts], keep_all=seeing
                )

    def _of_place(self, place: Place, seeing: bool) -> Shape:
        if isinstance(place.schema, bool):
            return ANY_SHAPE if place.schema else EMPTY_SHAPE
        keywords = Keywords(place, self.dropped)
        if self.document.draft.ref_stands_alone and "$ref" in keywords:
            return self._reference(keywords, "$ref", seeing)
        self._check(keywords)
        inner_seeing = seeing or keywords.has_any(_UNEVALUATED)
        found = ANY_SHAPE
        own_is_done = False
        for name in keywords:
            step = _STEPS.get(name)
            is_own = name in _OWN_NAMES
            if step is None or (is_own and own_is_done):
                continue
            if is_own and name != "properties" and "properties" in keywords:
                continue  # the properties' place among the keywords is their place in the output
            own_is_done = own_is_done or is_own
            found = shapes.meet(found, self._at(keywords, name, step, inner_seeing))
        return self._unevaluated(keywords, found, inner_seeing, seeing)

    def _at(
        self,
        keywords: Keywords,
        name: str,
        step: Callable[[Translation, Keywords, str, bool], Shape],
        seeing: bool,
    ) -> Shape:
        """One keyword's shape; an error below that has no place yet gets this one."""
        try:
            return step(self, keywords, name, seeing)
        except GrammarError as error:
            if error.pointer is not None:
                raise
            kind = InvalidSchema if isinstance(error, InvalidSchema) else UnsupportedKeyword
            raise kind(error.reason, pointer=keywords.place.pointer, keyword=name) from None

    def _check(self, keywords: Keywords) -> None:
        """Refuse null as a value, and what only a later draft than the document's knows."""
        for name in keywords:
            if name not in CONSTRAINTS:
                continue
            if keywords.get(name) is None and name != "const":
                raise keywords.invalid(name, "must not be null")
            if self.document.draft.ref_stands_alone and name in _LATER_NAMES:
                raise keywords.unsupported(
                    name, "the keyword is not part of the draft that $schema names"
                )

    def _own(self, keywords: Keywords, name: str, seeing: bool) -> Shape:
        """type and the keywords about one type each, which say nothing of other types."""
        types = _types(keywords) if "type" in keywords else ANY_SHAPE
        # What speaks of a type that is not allowed is not looked at, nor refused.
        shape = Shape(
            types.null,
            types.booleans,
            types.numbers,
            strings_of(keywords) if types.strings == ALL else types.strings,
            arrays_of(keywords, self.document) if types.arrays else (),
            objects_of(keywords, self.document) if types.objects else (),
        )
        if types.numbers and keywords.has_any(NUMBER_NAMES):
            bounded = replace(EMPTY_SHAPE, numbers=numbers_of(keywords))
            shape = replace(shape, numbers=shapes.meet(types, bounded).numbers)
        return shape if seeing else _without_seen(shape)

    def _enum(self, keywords: Keywords, name: str, seeing: bool) -> Shape:
        values = keywords.get("enum")
        if not isinstance(values, list):
            raise keywords.invalid("enum", "must be a list")
        self.num_enum_values += len(values)
        if self.num_enum_values > limits.MAX_ENUM_VALUES:
            raise GrammarError(f"enums have more than {limits.MAX_ENUM_VALUES} values in all")
        return shape_of_values(values)

    def _const(self, keywords: Keywords, name: str, seeing: bool) -> Shape:
        return shape_of_values([keywords.get("const")])

    def _reference(self, keywords: Keywords, name: str, seeing: bool) -> Shape:
        reference = keywords.get(name)
        if not isinstance(reference, str):
            raise keywords.invalid(name, "must be a string")
        if name == "$dynamicRef":
            target = self.document.resolve_dynamic(keywords.place, reference)
        else:
            target = self.document.resolve(keywords.place, reference, name)
        return self.shape(formula_at(self.document, target), seeing)

    def _recursive_reference(self, keywords: Keywords, name: str, seeing: bool) -> Shape:
        raise keywords.unsupported(name, "use $ref")

    def _branches(self, keywords: Keywords, name: str) -> list[Formula]:
        count = len(keywords.schema_list(name))
        return [
            formula_at(self.document, self.document.child(keywords.place, name, str(index)))
            for index in range(count)
        ]

    def _all_of(self, keywords: Keywords, name: str, seeing: bool) -> Shape:
        found = ANY_SHAPE
        for branch in self._branches(keywords, name):
            found = shapes.meet(found, self.shape(branch, seeing))
        return found

    def _any_of(self, keywords: Keywords, name: str, seeing: bool) -> Shape:
        return self._any(self._branches(keywords, name), seeing)

    def _any(self, branches: list[Formula], seeing: bool) -> Shape:
        found = [self.shape(branch, seeing) for branch in branches]
        if not seeing:
            return shapes.union(found)
        if len(found) > _MAX_EVALUATING_BRANCHES:
            raise GrammarError("too many alternatives next to unevaluated keywords")
        together = []
        for size in range(len(found), 0, -1):
            for chosen in combinations(found, size):
                shape = ANY_SHAPE
                for one in chosen:
                    shape = shapes.meet(shape, one)
                together.append(shape)
        return shapes.union(together, keep_all=True)

    def _one_of(self, keywords: Keywords, name: str, seeing: bool) -> Shape:
        branches = self._branches(keywords, name)
        plain = [self.shape(branch) for branch in branches]
        found = [self.shape(branch, seeing) for branch in branches]
        for i, j in combinations(range(len(plain)), 2):
            if not self._is_disjoint(plain[i], plain[j]):
                found[i] = shapes.meet(found[i], shapes.complement(plain[j]))
                found[j] = shapes.meet(found[j], shapes.complement(plain[i]))
        return shapes.union(found, keep_all=seeing)

    def _is_disjoint(self, left: Shape, right: Shape) -> bool:
        return self._have_other_tags(left, right) or is_empty(shapes.meet(left, right), self)

    def _have_other_tags(self, left: Shape, right: Shape) -> bool:
        """Whether both are objects only, told apart by a scalar that all of them have.

        Decides the usual case without a meet of all properties.
        """
        if not (left.has_objects_only and right.has_objects_only):
            return False
        return all(self._differ_in_a_tag(a, b) for a in left.objects for b in right.objects)

    def _differ_in_a_tag(self, left: Objects, right: Objects) -> bool:
        others = dict(right.properties)
        common = left.required & right.required
        for name, formula in left.properties:
            other = others.get(name)
            if name in common and other is not None and self._is_tag(formula, other):
                a, b = self.shape(formula), self.shape(other)
                if shapes.meet(a, b).is_plainly_empty:
                    return True
        return False

    def _is_tag(self, *formulas: Formula) -> bool:
        """Whether each lists its values, by itself."""
        for one in formulas:
            schema = self.document.place(one.number).schema if isinstance(one, Schema) else None
            if not isinstance(schema, dict) or not schema.keys() & {"const", "enum"}:
                return False
            if not schema.keys() <= _OF_TAGS:
                return False
        return True

    def _not(self, keywords: Keywords, name: str, seeing: bool) -> Shape:
        place = self.document.child(keywords.place, "not")
        return shapes.complement(self.shape(formula_at(self.document, place)))

    def _if(self, keywords: Keywords, name: str, seeing: bool) -> Shape:
        if "then" not in keywords and "else" not in keywords and not seeing:
            return ANY_SHAPE
        condition = formula_at(self.document, self.document.child(keywords.place, "if"))
        holds = self.shape(condition, seeing)
        if "then" in keywords:
            holds = shapes.meet(holds, self._child(keywords, "then", seeing))
        if "else" not in keywords and "then" not in keywords:
            return shapes.union([holds, ANY_SHAPE], keep_all=True)
        fails = shapes.complement(self.shape(condition))
        if "else" in keywords:
            fails = shapes.meet(fails, self._child(keywords, "else", seeing))
        return shapes.union([holds, fails], keep_all=seeing)

    def _child(self, keywords: Keywords, name: str, seeing: bool) -> Shape:
        place = self.document.child(keywords.place, name)
        return self.shape(formula_at(self.document, place), seeing)

    def _property_names(self, keywords: Keywords, name: str, seeing: bool) -> Shape:
        place = self.document.child(keywords.place, name)
        names = self.shape(formula_at(self.document, place)).strings
        return replace(ANY_SHAPE, objects=(with_keys_in(names),))

    def _dependent_required(self, keywords: Keywords, name: str, seeing: bool) -> Shape:
        found = ANY_SHAPE
        for trigger, value in keywords.mapping(name).items():
            if isinstance(value, list):
                found = shapes.meet(found, _implied(trigger, keywords.names(name, value)))
            elif name == "dependencies":
                found = shapes.meet(found, self._dependent(keywords, name, trigger, seeing))
            else:
                raise keywords.invalid(name, "must hold lists of names")
        return found

    def _dependent_schemas(self, keywords: Keywords, name: str, seeing: bool) -> Shape:
        found = ANY_SHAPE
        for trigger in keywords.mapping(name):
            found = shapes.meet(found, self._dependent(keywords, name, trigger, seeing))
        return found

    def _dependent(self, keywords: Keywords, name: str, trigger: str, seeing: bool) -> Shape:
        place = self.document.child(keywords.place, name, trigger)
        wanted = self.shape(formula_at(self.document, place), seeing)
        present = replace(EMPTY_SHAPE, objects=(with_name(trigger),))
        absent = replace(ANY_SHAPE, objects=(without_name(trigger),))
        return shapes.union([shapes.meet(present, wanted), absent], keep_all=seeing)

    def _unevaluated(
        self, keywords: Keywords, found: Shape, inner_seeing: bool, seeing: bool
    ) -> Shape:
        if "unevaluatedProperties" in keywords:
            wanted = self._child_formula(keywords, "unevaluatedProperties")
            found = shapes.map_objects(found, lambda case: unseen(case, wanted))
        if "unevaluatedItems" in keywords:
            wanted_item = self._child_formula(keywords, "unevaluatedItems")
            found = shapes.map_arrays(found, lambda case: _unseen_items(case, wanted_item))
        return _without_seen(found) if inner_seeing and not seeing else found

    def _child_formula(self, keywords: Keywords, name: str) -> Formula:
        return formula_at(self.document, self.document.child(keywords.place, name))


def _implied(trigger: str, names: list[str]) -> Shape:
    """If the trigger is there, so are the names."""
    with_all = with_name(trigger)
    cases: tuple[Objects, ...] = (with_all,)
    for name in names:
        cases = tuple(met for case in cases for met in objects.meet(case, with_name(name)))
    return replace(ANY_SHAPE, objects=(without_name(trigger), *cases))


def _unseen_items(case: Arrays, wanted: Formula) -> Arrays | None:
    """Items beyond the seen ones are wanted, or are what contains has seen."""
    if case.seen_items is None:
        return case
    allowed = disjunction((wanted, *case.seen_by))
    limited = Arrays(tuple(_ALWAYS for _ in range(case.seen_items)), allowed, seen_items=None)
    return arrays.meet(case, limited)


def _without_seen(shape: Shape) -> Shape:
    if not any(case.seen_items != 0 or case.seen_by for case in shape.arrays) and not any(
        case.seen_names or case.seen_keys for case in shape.objects
    ):
        return shape
    arrays_left = (replace(case, seen_items=0, seen_by=()) for case in shape.arrays)
    objects_left = (replace(case, seen_names=frozenset(), seen_keys=()) for case in shape.objects)
    return replace(
        shape,
        arrays=tuple(dict.fromkeys(arrays_left)),
        objects=tuple(dict.fromkeys(objects_left)),
    )


_ALWAYS = Always()
_TYPES = {
    "null": Shape(null=True),
    "boolean": Shape(booleans=frozenset((False, True))),
    "number": Shape(numbers=(ANY_NUMBER,)),
    "integer": Shape(numbers=(INTEGERS,)),
    "string": Shape(strings=ALL),
    "array": replace(EMPTY_SHAPE, arrays=ANY_SHAPE.arrays),
    "object": replace(EMPTY_SHAPE, objects=ANY_SHAPE.objects),
}


def _types(keywords: Keywords) -> Shape:
    value: JsonValue = keywords.get("type")
    names = keywords.names("type", value) if isinstance(value, list) else [value]
    found = []
    for name in names:
        if not isinstance(name, str) or name not in _TYPES:
            raise keywords.invalid("type", f"must be a JSON type, not {name!r}")
        found.append(_TYPES[name])
    if not found:
        raise keywords.invalid("type", "must not be an empty list")
    return found[0] if len(found) == 1 else shapes.union(found)


_OWN_NAMES = frozenset(("type",)) | NUMBER_NAMES | STRING_NAMES | ARRAY_NAMES | OBJECT_NAMES
_LATER_NAMES = frozenset(
    "$dynamicRef prefixItems minContains maxContains dependentRequired dependentSchemas "
    "unevaluatedItems unevaluatedProperties".split()
)
_STEPS: dict[str, Callable[[Translation, Keywords, str, bool], Shape]] = {
    **dict.fromkeys(_OWN_NAMES, Translation._own),
    "enum": Translation._enum,
    "const": Translation._const,
    "$ref": Translation._reference,
    "$dynamicRef": Translation._reference,
    "$recursiveRef": Translation._recursive_reference,
    "allOf": Translation._all_of,
    "anyOf": Translation._any_of,
    "oneOf": Translation._one_of,
    "not": Translation._not,
    "if": Translation._if,
    "propertyNames": Translation._property_names,
    "dependentRequired": Translation._dependent_required,
    "dependentSchemas": Translation._dependent_schemas,
    "dependencies": Translation._dependent_required,
}
