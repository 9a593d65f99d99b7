"""What ends a string that waits for something, from wherever it stands."""

from __future__ import annotations

import json
import re

import pytest

from runtime.grammars.pattern_completion import MAX_OPEN_CHARACTERS, PatternCompletions
from runtime.grammars.prepare import prepare
from runtime.grammars.spec import GrammarKind, GrammarSpec

PATTERNS = [
    "^cat|dog$",
    '^"[^"\\\\]*"$',
    "x.y",
    "\\n",
    "a[0-9]b[0-9]c",
    "^(?:foo|.*bar)$",
    "colou?r.*end$",
    "^(?=.*[0-9])(?=.*[a-z]).*$",
    "^[^@]+@[^@]+$",
]


def completions(kind: GrammarKind, text: str) -> PatternCompletions:
    return PatternCompletions(prepare(GrammarSpec(kind, text)))


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("start", ["", "hello", "ca", "x", "a1b", "colour", "\\t", "\u00e9 "])
def test_a_string_ends_matching_its_pattern(pattern: str, start: str) -> None:
    of_string = completions(
        GrammarKind.JSON_SCHEMA, json.dumps({"type": "string", "pattern": pattern})
    )

    found = of_string.after(f'"{start}')

    assert found or (start and pattern.startswith('^"'))  # which must begin with a quote
    for end in found:
        assert re.search(pattern, json.loads(f'"{start}{end}'))


def test_an_end_is_the_shortest_one() -> None:
    of_string = completions(GrammarKind.JSON_SCHEMA, '{"type":"string","pattern":"^cat|dog$"}')

    assert of_string.after('"ca') == ['t"']
    assert of_string.after('"hello d') == ['og"']
    assert of_string.after('"cat and') == ['"']


@pytest.mark.parametrize(
    ("pattern", "start", "end"),
    [(".*x.y", "say x", "ay"), ("[a-z]+@[a-z]+", "me", "@a"), ("(?:ab)+c", "aba", "bc")],
)
def test_a_regex_is_ended_as_a_whole(pattern: str, start: str, end: str) -> None:
    assert completions(GrammarKind.REGEX, pattern).after(start) == [end]


def test_quotes_within_other_strings_open_none() -> None:
    string = {"type": "string"}
    schema = {"type": "object", "properties": {"a": string, "b": {**string, "pattern": "x.y"}}}

    found = completions(GrammarKind.JSON_SCHEMA, json.dumps(schema)).after('{"a":"say \\"x","b":"x')

    assert 'ay"' in found


def test_a_long_string_is_not_followed() -> None:
    of_string = completions(GrammarKind.JSON_SCHEMA, '{"type":"string","pattern":"x.y"}')

    assert of_string.after('"' + "a" * MAX_OPEN_CHARACTERS) == []


@pytest.mark.parametrize("grammar", ['start: "a" /[/', "start: (", "start: /(?=a)b/ ~", "start:"])
def test_what_cannot_be_read_has_no_completion(grammar: str) -> None:
    spec = GrammarSpec(GrammarKind.LARK, grammar)

    assert PatternCompletions(prepare(spec)).after("a") == []


def test_examples_are_what_the_terminals_spell() -> None:
    found = completions(GrammarKind.JSON_SCHEMA, '{"type":"array","contains":{"const":5}}').examples

    assert {"5", "[", "]", ","} <= set(found)
