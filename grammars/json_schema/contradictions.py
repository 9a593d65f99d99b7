"""Why it may be that no text satisfies a schema: a place of it that nothing satisfies by itself."""

from __future__ import annotations

from decimal import Decimal

from .documents import Document

_BOUNDS = (
    ("minimum", "maximum"),
    ("minLength", "maxLength"),
    ("minItems", "maxItems"),
    ("minProperties", "maxProperties"),
)


def contradiction(document: Document) -> tuple[str, str] | None:
    """What contradicts itself, as the end of a sentence, and the pointer to its place; or None.

    Not every contradiction: those of two numbers, and empty lists of choices. Nor need it be the
    one at fault: the place may be one that no text has to have.
    """
    for low, high in _BOUNDS:
        for pointer in document.pointers_with(low):
            schema = document.at(pointer).schema
            assert isinstance(schema, dict)
            least, most = schema[low], schema.get(high)
            if isinstance(least, (int, Decimal)) and isinstance(most, (int, Decimal)):
                if least > most:
                    return f"{low} is {least}, and {high} {most}", pointer
    for pointer in document.pointers_with("enum"):
        schema = document.at(pointer).schema
        if isinstance(schema, dict) and schema["enum"] == []:
            return "enum is empty", pointer
    return None
