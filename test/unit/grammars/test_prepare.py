"""What each kind of grammar is checked for before it is compiled."""

from __future__ import annotations

import json

import pytest
from support.schema_rig import accepted, vocabulary

from runtime.grammars import prepare as checks
from runtime.grammars.compile import compile_grammar
from runtime.grammars.matcher import Grammar, GrammarError
from runtime.grammars.prepare import prepare
from runtime.grammars.spec import GrammarKind, GrammarSpec


def compiled(kind: GrammarKind, text: str) -> Grammar:
    return compile_grammar(prepare(GrammarSpec(kind, text)), vocabulary())


def test_any_json_object_and_nothing_else_is_a_json_object() -> None:
    grammar = compiled(GrammarKind.JSON_OBJECT, "")

    good = ["{}", '{"a": [1, {"b": null}]}']
    assert accepted(grammar, *good, "[]", "1", '"{}"', "{} ") == good


def test_a_choice_is_one_of_its_strings_whatever_they_hold() -> None:
    choices = ["yes", "yes/no", 'a "b"\n', "[x]*", "ä", "<|mark", "\\d"]

    grammar = compiled(GrammarKind.CHOICE, json.dumps(choices))

    assert accepted(grammar, *choices, "yes/", "x", "7", "") == choices


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "not empty"),
        ('{"a":1}', "list of strings"),
        ('["a",1]', "not a string"),
        ('["a",""]', "empty string"),
        ("[", "not valid JSON"),
    ],
)
def test_a_malformed_choice_is_refused(text: str, message: str) -> None:
    with pytest.raises(GrammarError, match=message):
        prepare(GrammarSpec(GrammarKind.CHOICE, text))


@pytest.mark.parametrize("kind", [GrammarKind.REGEX, GrammarKind.EBNF, GrammarKind.LARK])
def test_texts_of_grammars_are_bounded(kind: GrammarKind) -> None:
    for text, message in (
        ("  ", "is empty"),
        ("a" * (checks.MAX_GRAMMAR_BYTES + 1), f"at most {checks.MAX_GRAMMAR_BYTES}"),
        ("(" * 300 + ")" * 300, f"more than {checks.MAX_NESTING} deep"),
        ("\ud800", "lone surrogate"),
    ):
        with pytest.raises(GrammarError, match=message):
            prepare(GrammarSpec(kind, text))


def test_a_regex_is_matched_as_a_whole() -> None:
    grammar = compiled(GrammarKind.REGEX, "[a-c]+/[0-9]{2}")

    assert accepted(grammar, "abc/12", "abc/123", "x/12") == ["abc/12"]


@pytest.mark.parametrize("pattern", ["\\", "a\\", "a\\\\\\"])
def test_a_regex_that_ends_in_half_an_escape_is_refused(pattern: str) -> None:
    with pytest.raises(GrammarError, match="backslash"):
        prepare(GrammarSpec(GrammarKind.REGEX, pattern))
    prepare(GrammarSpec(GrammarKind.REGEX, pattern + "\\"))
