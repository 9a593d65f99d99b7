"""docs/schema-support.md is what the code says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.schema_rig import accepted, schema_grammar

from runtime.grammars.json_schema import formats
from runtime.grammars.json_schema.places import ANNOTATIONS
from runtime.grammars.json_schema.support_page import page

PAGE = Path(__file__).parents[4] / "docs" / "schema-support.md"


def test_the_committed_page_is_current() -> None:
    command = "python -m runtime.grammars.json_schema.support_page > docs/schema-support.md"

    assert PAGE.read_text("utf-8") == page(), f"write it anew: {command}"


@pytest.mark.parametrize("name", sorted(ANNOTATIONS - {"$schema", "$id", "$defs", "definitions"}))
def test_what_the_page_calls_a_note_constrains_nothing(name: str) -> None:
    schema: dict[str, Any] = {"type": "null", name: "note"}

    assert accepted(schema_grammar(schema), "null", "1") == ["null"]


VALUES = {
    "byte": ("aGk=", "aGk"),
    "date": ("2024-02-29", "2023-02-29"),
    "date-time": ("2024-01-31T23:59:60Z", "2024-01-31T24:00:00Z"),
    "duration": ("P1Y2M3DT4H5M6S", "P1D2H"),
    "email": ("a.b+c@example.org", "a..b@example.org"),
    "hostname": ("a-1.example", "-a.example"),
    "ipv4": ("192.168.0.255", "192.168.0.256"),
    "ipv6": ("2001:db8::1:0.0.0.1", "2001::db8::1"),
    "json-pointer": ("/a~1b/0", "/a~2"),
    "relative-json-pointer": ("1/a", "01/a"),
    "time": ("12:30:00.5+01:00", "12:30:00"),
    "uri": ("https://u@[::1]:80/a%20b?q=1#f", "a b://x"),
    "uri-reference": ("../a?b", "a\\b"),
    "uuid": ("123E4567-e89b-12d3-a456-426614174000", "123e4567-e89b-12d3-a456-42661417400"),
}


@pytest.mark.parametrize("name", formats.NAMES)
def test_each_format_tells_right_from_wrong(name: str) -> None:
    right, wrong = ('"' + text.replace("\\", "\\\\") + '"' for text in VALUES[name])

    grammar = schema_grammar({"type": "string", "format": name})

    assert accepted(grammar, right, wrong) == [right]
