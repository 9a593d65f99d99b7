"""The schemas that are measured, each with texts that it takes: own ones, and the sample's.

The own ones stand for what requests ask for: records, tool arguments, choices, maps, trees.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SAMPLE = "maskbench"


@dataclass(frozen=True, slots=True)
class Case:
    """A schema and values that it takes.

    Each value stands in all the orders of its keys that a grammar may ask for.
    """

    name: str
    schema: Any  # an object or a boolean
    values: tuple[tuple[Any, ...], ...]  # any JSON value


def own_cases() -> list[Case]:
    """Small cases that need no other data."""
    return [
        Case(name, schema, tuple((value,) for value in values))
        for name, (schema, values) in _OWN.items()
    ]


def sample_cases(data: Path | None) -> list[Case]:
    """The real schemas of the sample under data. Raises FileNotFoundError, naming what is absent.

    So it does for a package that the reader of the suites needs.
    """
    try:
        from conformance_suites.groups import load_groups
        from conformance_suites.spellings import texts
    except ModuleNotFoundError as error:
        raise FileNotFoundError(f"{SAMPLE}: package {error.name} is not installed") from None
    cases = []
    for group in load_groups(SAMPLE, data):
        values = []
        for instance in group.instances:
            if instance.is_valid:
                written = [json.loads(text) for text in texts(instance.value, group.schema)]
                orders = dict.fromkeys(map(json.dumps, written))
                values.append(tuple(map(json.loads, orders)))
        cases.append(Case(group.name, group.schema, tuple(values)))
    return cases


def _record(properties: dict[str, Any], *optional: str) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": [name for name in properties if name not in optional],
        "additionalProperties": False,
    }


_TEXT: dict[str, Any] = {"type": "string", "maxLength": 40}
_COUNT: dict[str, Any] = {"type": "integer", "minimum": 0, "maximum": 10_000}
_SHELF = {f"field_{number:02}": _TEXT for number in range(50)}

_OWN: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "person": (
        _record({"name": _TEXT, "born": _COUNT, "city": _TEXT, "member": {"type": "boolean"}}),
        ({"name": "Ines Duarte", "born": 1987, "city": "Porto", "member": True},),
    ),
    "order": (
        _record(
            {
                "order_id": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{6}$"},
                "lines": {
                    "type": "array",
                    "minItems": 1,
                    "maxItems": 20,
                    "items": _record({"article": _TEXT, "pieces": _COUNT, "note": _TEXT}, "note"),
                },
                "express": {"type": "boolean"},
            }
        ),
        (
            {
                "order_id": "PT-004711",
                "lines": [
                    {"article": "garden chair", "pieces": 4},
                    {"article": "table", "pieces": 1, "note": "round, white"},
                ],
                "express": False,
            },
        ),
    ),
    "weather tool": (
        _record(
            {
                "place": _TEXT,
                "unit": {"type": "string", "enum": ["celsius", "fahrenheit", "kelvin"]},
                "days": {"type": "integer", "minimum": 1, "maximum": 14},
                "hourly": {"type": "boolean"},
            },
            "days",
            "hourly",
        ),
        ({"place": "Reykjavik", "unit": "celsius", "days": 5},),
    ),
    "either of three": (
        {
            "anyOf": [
                _record({"kind": {"const": "circle"}, "radius": {"type": "number"}}),
                _record({"kind": {"const": "square"}, "side": {"type": "number"}}),
                {"type": "null"},
            ]
        },
        ({"kind": "square", "side": 12.5}, None),
    ),
    "stamps and addresses": (
        _record(
            {
                "id": {"type": "string", "format": "uuid"},
                "at": {"type": "string", "format": "date-time"},
                "from": {"type": "string", "format": "ipv4"},
            }
        ),
        (
            {
                "id": "7f1a4c52-03be-4d6f-9a57-2b8e6c90d1f4",
                "at": "2024-05-17T08:30:00Z",
                "from": "192.168.4.20",
            },
        ),
    ),
    "map of counts": (
        {"type": "object", "additionalProperties": _COUNT, "maxProperties": 50},
        ({"oak": 12, "beech": 7, "lime tree": 103, "Esche": 0},),
    ),
    "tree": (
        {
            "$ref": "#/$defs/node",
            "$defs": {
                "node": _record(
                    {
                        "label": _TEXT,
                        "children": {"type": "array", "items": {"$ref": "#/$defs/node"}},
                    },
                    "children",
                )
            },
        },
        (
            {
                "label": "root",
                "children": [
                    {"label": "left", "children": []},
                    {"label": "right", "children": [{"label": "leaf"}]},
                ],
            },
        ),
    ),
    "fifty required": (_record(_SHELF), (dict.fromkeys(_SHELF, "empty"),)),
    "fifty optional": (
        _record(_SHELF, *_SHELF),
        (dict.fromkeys(list(_SHELF)[::5], "some words"),),
    ),
    "hundred names": (
        {"type": "string", "enum": [f"station {number:03} north" for number in range(100)]},
        ("station 042 north",),
    ),
    "points": (
        {
            "type": "array",
            "maxItems": 100,
            "items": {
                "type": "array",
                "items": {"type": "number", "minimum": -180, "maximum": 180},
                "minItems": 2,
                "maxItems": 2,
            },
        },
        ([[12.25, -4.5], [0, 179.9], [-33.125, 7]],),
    ),
    "long text": (
        _record({"title": _TEXT, "body": {"type": "string", "maxLength": 2_000}}),
        (
            {
                "title": "Käse aus den Bergen",
                "body": "The cheese ripens for nine months.\nIt is turned each week. " * 4,
            },
        ),
    ),
}
