"""Writes types into schemas of the official suite.

Most of its schemas leave `type` out, which lets through every value of another type. A user who
asks for output writes the type; the labels are then worked out anew by the jsonschema package.
"""

from __future__ import annotations

from typing import Any

import jsonschema

_ONE_TYPE = {
    "string": "minLength maxLength pattern format",
    "number": "minimum maximum exclusiveMinimum exclusiveMaximum multipleOf",
    "array": "items prefixItems minItems maxItems uniqueItems contains additionalItems "
    "unevaluatedItems minContains maxContains",
    "object": "properties additionalProperties patternProperties required minProperties "
    "maxProperties propertyNames dependentRequired dependentSchemas dependencies "
    "unevaluatedProperties",
}
_SPEAKS_OF = {word: name for name, words in _ONE_TYPE.items() for word in words.split()}
_SAYS_OTHERWISE = frozenset("type enum const $ref allOf anyOf oneOf $dynamicRef".split())
_MAPS = frozenset("properties patternProperties $defs definitions dependentSchemas".split())
_SCHEMAS = frozenset(
    "items additionalProperties contains not if then else propertyNames additionalItems "
    "unevaluatedItems unevaluatedProperties allOf anyOf oneOf prefixItems".split()
)
_VALIDATORS = {
    "draft7": jsonschema.Draft7Validator,
    "draft2020-12": jsonschema.Draft202012Validator,
}


def with_types(
    schema: Any, tests: list[dict[str, Any]], draft: str
) -> tuple[Any, list[dict[str, Any]]]:
    """The schema with types, and its tests with the labels that then hold."""
    typed = _typed(schema)
    validator = _VALIDATORS[draft](typed)
    labelled = []
    for test in tests:
        try:
            is_valid = validator.is_valid(test["data"])
        except Exception:  # references that the package cannot follow: the label stays
            is_valid = test["valid"]
        labelled.append({**test, "valid": is_valid})
    return typed, labelled


def _typed(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_typed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found: dict[str, Any] = {}
    for word, value in schema.items():
        if word in _MAPS and isinstance(value, dict):
            found[word] = {name: _typed(one) for name, one in value.items()}
        else:
            found[word] = _typed(value) if word in _SCHEMAS else value
    types = {_SPEAKS_OF[word] for word in found if word in _SPEAKS_OF}
    if len(types) == 1 and _SAYS_OTHERWISE.isdisjoint(found):
        found = {"type": types.pop(), **found}
    return found
