"""The page "What a schema may contain", written from the lists that the compiler itself uses.

python -m runtime.grammars.json_schema.support_page > docs/schema-support.md
"""

from __future__ import annotations

from ..spec import MAX_WHITESPACE
from . import formats, limits, number_lark
from .places import ANNOTATIONS, CONSTRAINTS

# What is enforced of each keyword, and what of it is refused.
KEYWORDS = {
    "type": "all seven types, alone or in a list",
    "enum": "any values, filtered by the keywords beside it",
    "const": "any value",
    "minimum": "exact, whatever the number of digits",
    "maximum": "exact, whatever the number of digits",
    "exclusiveMinimum": "exact; also the true/false mark of draft 4",
    "exclusiveMaximum": "exact; also the true/false mark of draft 4",
    "multipleOf": "products of powers of 2 and 5, of 3 and of 7 over a power of 10, such as 60, "
    "1.5 or 0.01; anything where bounds leave at most 1,000 multiples; refused: other divisors",
    "minLength": "in characters, together with pattern and format",
    "maxLength": "in characters, together with pattern and format",
    "pattern": "ECMA-262, found anywhere unless anchored; refused: back references, word "
    "boundaries, look-behind, look-ahead after other text, anchors inside a repetition",
    "format": "the formats below; refused: all others",
    "properties": "in the order in which they are written",
    "required": "also names that are not in properties: they come after those that are",
    "additionalProperties": "keys that have no name in the schema come last",
    "patternProperties": "patterns may overlap, with each other and with properties",
    "propertyNames": "any schema",
    "minProperties": "with free keys, one key that has no name in properties counts, not several",
    "maxProperties": "counts all keys",
    "dependentRequired": "as cases",
    "dependentSchemas": "as cases",
    "dependencies": "draft 7: as the two above",
    "items": "one schema, or a list as in draft 7",
    "prefixItems": "with items for the rest",
    "additionalItems": "next to a list in items",
    "minItems": "exact",
    "maxItems": "exact",
    "contains": "with minContains and maxContains, as far as counting stays small",
    "minContains": "next to contains",
    "maxContains": "next to contains",
    "uniqueItems": f"where items have at most {limits.MAX_UNIQUE_VALUES} possible values (an "
    "enum), cannot be equal, or are at most one; refused elsewhere, next to contains and under not",
    "allOf": "merged, whatever it holds",
    "anyOf": "distributed over the keywords beside it",
    "oneOf": "the branches are made to exclude each other where they do not",
    "not": "any schema, as its complement",
    "if": "with then and else, as two cases",
    "then": "next to if",
    "else": "next to if",
    "$ref": "within the schema: pointers, $anchor, $id; recursion; keywords beside it count (in "
    "draft 7 they do not); refused: other documents",
    "$dynamicRef": "where only one schema can be meant",
    "$recursiveRef": "refused: use $ref",
    "unevaluatedProperties": "through allOf, anyOf, oneOf, if, $ref and dependentSchemas",
    "unevaluatedItems": "likewise, and items that contains has seen",
}
assert KEYWORDS.keys() == CONSTRAINTS, KEYWORDS.keys() ^ CONSTRAINTS

LIMITS = {
    "text": f"{limits.MAX_SCHEMA_BYTES // 1024} KiB",
    "objects and arrays in it": f"{limits.MAX_SCHEMA_NODES:,}",
    "other values in it": f"{limits.MAX_SCALARS:,}",
    "nesting": f"{limits.MAX_DEPTH}",
    "enum values, in all": f"{limits.MAX_ENUM_VALUES:,}",
    "names in one properties": f"{limits.MAX_PROPERTIES:,}",
    "minLength, minItems, minProperties, counts of a repetition": f"{limits.MAX_REPEATS:,}",
    "characters of a regular expression": f"{limits.MAX_REGEX_CHARACTERS:,}",
    "digits of a number": f"{limits.MAX_NUMBER_DIGITS}",
    "cases of one type after merging": f"{limits.MAX_ALTERNATIVES}",
    "sub-schemas after merging": f"{limits.MAX_RULES:,}",
}


def page() -> str:
    """The whole page, as Markdown."""
    listed = [f"| `{name}` | {text} |" for name, text in KEYWORDS.items()]
    limited = [f"| {name} | {value} |" for name, value in LIMITS.items()]
    notes = ", ".join(f"`{name}`" for name in sorted(ANNOTATIONS))
    names = ", ".join(f"`{name}`" for name in formats.NAMES)
    return f"""# What a schema may contain

This page is written by `python -m runtime.grammars.json_schema.support_page`; a test holds it to
the code.

A schema is a promise: what comes out is an instance of it, in every detail. A keyword that cannot
be kept is refused with a 400 that names it and its place (a JSON pointer). With `strict: false`
such keywords are left out, and the answer lists them. Drafts 7 and 2020-12 are followed as
`$schema` says; a schema that does not say follows 2020-12, but may use what draft 7 wrote
differently.
Schemas of drafts 4, 6 and 2019-09 are read as well.

A schema without `type` allows every type that its other keywords do not speak of: write the type.

## Keywords

| keyword | what is enforced |
|---|---|
{chr(10).join(listed)}

Keywords that only describe are passed over: {notes}. So is, as the standard asks, a keyword that no
draft knows. In a schema of draft 7 a keyword of a later draft is refused, not passed over.

## Formats

{names}. `byte` is base64; no year is 0. A format says nothing about values that are not strings.

## How the text is written

- Keys come in the order of the schema's text: `properties` as they are written, those of `allOf`,
  `anyOf`, `$ref` and the like at the place where that keyword stands, names that only `required`
  has after them, free keys last.
- Strings have one spelling: what must be escaped is escaped, nothing else. So no key can come twice
  under two spellings, and there are no lone surrogates.
- Whole numbers have no decimals and no exponent. Free numbers have at most
  {number_lark.MAX_INTEGER_DIGITS} digits, as many decimals, and exponents that floats have.
- Whitespace follows `--json-whitespace`; `bounded` allows {MAX_WHITESPACE} characters at a place.
- A free key may be written twice; readers keep the last one, and each of them is valid.

## Limits

| what | at most |
|---|---|
{chr(10).join(limited)}

Also refused: schemas that no finite text satisfies, a `$ref` that leads to itself without anything
in between, a key that stands twice in one object of the schema, and schemas whose alternatives
multiply beyond what can be compiled in about 0.1 s.
"""


if __name__ == "__main__":
    print(page(), end="")
