"""What is known of a place without working it out."""

from __future__ import annotations

from .documents import Document, Place
from .formulas import ALWAYS, NEVER, Formula, Schema

# Keywords that describe and do not constrain.
ANNOTATIONS = frozenset(
    "$schema $id id $comment $anchor $dynamicAnchor $recursiveAnchor $vocabulary $defs definitions "
    "title description default examples example deprecated readOnly writeOnly contentEncoding "
    "contentMediaType contentSchema".split()
)
CONSTRAINTS = frozenset(
    "$ref $dynamicRef $recursiveRef type enum const allOf anyOf oneOf not if then else minimum "
    "maximum exclusiveMinimum exclusiveMaximum multipleOf minLength maxLength pattern format items "
    "prefixItems additionalItems minItems maxItems uniqueItems contains minContains maxContains "
    "unevaluatedItems properties patternProperties additionalProperties propertyNames required "
    "minProperties maxProperties dependentRequired dependentSchemas dependencies "
    "unevaluatedProperties".split()
)


def formula_at(document: Document, place: Place) -> Formula:
    """The formula of a place; plain where the schema says nothing or forbids all."""
    if isinstance(place.schema, bool):
        return ALWAYS if place.schema else NEVER
    if CONSTRAINTS.isdisjoint(place.schema):
        return ALWAYS
    return Schema(place.number)
