"""Examples of regular expressions, held to Python's own reading of them."""

from __future__ import annotations

import re

import pytest

from runtime.grammars.closing_hints import closing_hints
from runtime.grammars.pattern_examples import MAX_CHARACTERS, example_of
from runtime.grammars.prepare import prepare
from runtime.grammars.spec import GrammarKind, GrammarSpec


@pytest.mark.parametrize(
    "pattern",
    [
        "",
        "abc",
        "a|bc|",
        "(?:ab|c)+x.y",
        "[0-9]{3}-[^0-9]{2,5}",
        r"\d+\.\d*\s\w\S\D\W",
        r"[^a0A bB1_\-.@/:é一]x",
        r"[\x41-\x43]{2}\x2e\n",
        "[]a]?[a-]+",
        "(?:(?:a{1,60}){1,60}){1,60}",
        "[一-鿿]{3}",
    ],
)
def test_example_is_matched_and_as_short_as_its_repeats_allow(pattern: str) -> None:
    example = example_of(pattern)
    if pattern == "[]a]?[a-]+":
        assert example is None  # read otherwise by other dialects
        return
    assert example is not None
    assert re.fullmatch(pattern, example), example


def test_a_code_point_in_braces_is_one_character() -> None:
    assert example_of(r"\x{1f600}[\x{5b}-\x{5d}]") == "\U0001f600["


@pytest.mark.parametrize(
    "pattern", ["(", "a)", "[a", "(?=a)b", "^a", "a{300}", r"\p{Lu}", "*", "a{", "(" * 5_000]
)
def test_what_is_not_plain_has_no_example(pattern: str) -> None:
    assert example_of(pattern) is None


def test_examples_are_bounded() -> None:
    example = example_of("(?:a{20}){20}|b")
    assert example is None or len(example) <= MAX_CHARACTERS


@pytest.mark.parametrize(
    ("schema", "hint"),
    [
        ('{"type": "string", "pattern": "x.y"}', "xay"),
        ('{"type": "string", "pattern": "\\\\n"}', "\\n"),
        ('{"type": "string", "pattern": "[一-鿿]{2}"}', "一一"),
    ],
)
def test_a_hint_is_what_an_open_pattern_waits_for_as_json_writes_it(schema: str, hint: str) -> None:
    prepared = prepare(GrammarSpec(GrammarKind.JSON_SCHEMA, schema))
    assert hint in closing_hints(prepared)
