"""Case E: the JSON that requests ask for, its schema, and the check of an answer.

The check is written out by hand, apart from the schema: it needs no package, and an engine that
misreads a schema cannot pass it by misreading the check the same way.
"""

from __future__ import annotations

import json
from typing import Any

CATEGORIES = ["tools", "books", "food", "clothes"]
URGENCIES = ["low", "medium", "high"]
TEXT_LIMITS = {"customer": 20, "contact": 24, "city": 16}
NUMBER_LIMITS = {"parcels": 120, "price_cents": 500_000}
LABEL_LIMIT = 12
COUNT_LIMIT = 10

_CUSTOMERS = [
    ("Ada Moreau", "Nantes"),
    ("Ben Okoye", "Lagos"),
    ("Chiara Riva", "Turin"),
    ("Dmitri Orlov", "Riga"),
    ("Eva Lindqvist", "Malmo"),
    ("Felix Brandt", "Bremen"),
    ("Gita Menon", "Kochi"),
    ("Hana Kimura", "Sapporo"),
    ("Ivan Kostov", "Varna"),
    ("Julia Santos", "Recife"),
    ("Kofi Mensah", "Accra"),
    ("Liam Byrne", "Galway"),
    ("Maya Levi", "Haifa"),
    ("Nils Berg", "Bergen"),
    ("Olga Wrona", "Gdansk"),
    ("Pablo Cruz", "Quito"),
]


def _text(limit: int) -> dict[str, Any]:
    return {"type": "string", "maxLength": limit}


def _number(limit: int) -> dict[str, Any]:
    return {"type": "integer", "minimum": 0, "maximum": limit}


def _record(properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


SHIPMENT_SCHEMA = _record(
    {
        "customer": _text(TEXT_LIMITS["customer"]),
        "parcels": _number(NUMBER_LIMITS["parcels"]),
        "contact": _text(TEXT_LIMITS["contact"]),
        "city": _text(TEXT_LIMITS["city"]),
        "category": {"type": "string", "enum": CATEGORIES},
        "urgency": {"type": "string", "enum": URGENCIES},
        "price_cents": _number(NUMBER_LIMITS["price_cents"]),
        "items": {
            "type": "array",
            "minItems": 2,
            "maxItems": 3,
            "items": _record({"label": _text(LABEL_LIMIT), "count": _number(COUNT_LIMIT)}),
        },
    }
)


def shipment_question(number: int, round_number: int) -> str:
    """Return a user's message that asks for one shipment as JSON."""
    name, city = _CUSTOMERS[number % len(_CUSTOMERS)]
    return (
        f"Order {round_number}-{number}. Write one JSON object for a shipment to {name} in {city}, "
        "with customer, parcels, contact (an email address), city, category, urgency, price_cents "
        "and items (two or three, each with label and count)."
    )


def is_valid_shipment(text: str) -> bool:
    """Return whether text is JSON that SHIPMENT_SCHEMA accepts."""
    try:
        value = json.loads(text)
    except ValueError:
        return False
    if not isinstance(value, dict) or set(value) != set(SHIPMENT_SCHEMA["properties"]):
        return False
    items = value["items"]
    return (
        all(_is_text(value[name], limit) for name, limit in TEXT_LIMITS.items())
        and all(_is_count(value[name], limit) for name, limit in NUMBER_LIMITS.items())
        and value["category"] in CATEGORIES
        and value["urgency"] in URGENCIES
        and isinstance(items, list)
        and 2 <= len(items) <= 3
        and all(_is_item(item) for item in items)
    )


def _is_item(value: object) -> bool:
    return (
        isinstance(value, dict)
        and set(value) == {"label", "count"}
        and _is_text(value["label"], LABEL_LIMIT)
        and _is_count(value["count"], COUNT_LIMIT)
    )


def _is_text(value: object, limit: int) -> bool:
    return isinstance(value, str) and len(value) <= limit


def _is_count(value: object, limit: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= limit
