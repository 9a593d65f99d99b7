"""Keywords about objects."""

from __future__ import annotations

from dataclasses import replace

from . import limits
from .documents import Document
from .formulas import ALWAYS, NEVER, Formula, conjunction
from .keywords import Keywords
from .objects import ANY_OBJECT, Objects, partition, simplified
from .places import formula_at
from .regex_ast import ALL, Regex, inverse
from .regex_match import matches
from .scalar_keywords import pattern_of

NAMES = frozenset(
    "properties patternProperties additionalProperties required minProperties maxProperties".split()
)


def objects_of(keywords: Keywords, document: Document) -> tuple[Objects, ...]:
    """Objects that the keywords allow; those with cases of their own aside."""
    if not keywords.has_any(NAMES):
        return (ANY_OBJECT,)
    place = keywords.place
    declared = keywords.mapping("properties")
    if len(declared) > limits.MAX_PROPERTIES:
        raise keywords.invalid(
            "properties",
            f"has {len(declared)} names, at most {limits.MAX_PROPERTIES} can be served",
        )
    patterns = [
        (
            pattern_of(keywords, "patternProperties", source),
            formula_at(document, document.child(place, "patternProperties", source)),
        )
        for source in keywords.mapping("patternProperties")
    ]
    default: Formula = ALWAYS
    if "additionalProperties" in keywords:
        default = formula_at(document, document.child(place, "additionalProperties"))
    rest = partition(patterns, default)
    properties = {
        name: conjunction(
            (
                formula_at(document, document.child(place, "properties", name)),
                *(formula for keys, formula in patterns if matches(keys, name)),
            )
        )
        for name in declared
    }
    required = _required(keywords)
    found = Objects(
        tuple(properties.items()),
        frozenset(required),
        rest,
        keywords.count("minProperties") or 0,
        keywords.count("maxProperties"),
        (),
        frozenset(declared),
        _seen_keys(keywords, [keys for keys, _ in patterns]),
    )
    missing = tuple((name, found.of_other(name)) for name in required if name not in properties)
    plain = simplified(replace(found, properties=found.properties + missing))
    return () if plain is None else (plain,)


def named(name: str, formula: Formula, *, required: bool) -> Objects:
    """Objects in which one property is as given, the rest free."""
    return Objects(((name, formula),), frozenset((name,)) if required else frozenset())


def with_name(name: str) -> Objects:
    return named(name, ALWAYS, required=True)


def without_name(name: str) -> Objects:
    return named(name, NEVER, required=False)


def with_keys_in(keys: Regex) -> Objects:
    """Objects all of whose keys are in a set."""
    found = simplified(Objects(rest=((keys, ALWAYS), (inverse(keys), NEVER))))
    assert found is not None, "the empty object has no key"
    return found


def _required(keywords: Keywords) -> list[str]:
    value = keywords.get("required")
    return [] if value is None else list(dict.fromkeys(keywords.names("required", value)))


def _seen_keys(keywords: Keywords, patterns: list[Regex]) -> tuple[Regex, ...]:
    return (ALL,) if "additionalProperties" in keywords else tuple(patterns)
