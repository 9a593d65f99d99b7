"""Regular expressions of schemas against those of Python, where the two agree."""

from __future__ import annotations

import re
from itertools import product

import pytest

from runtime.grammars.json_schema.regex_ast import both, inverse, length, words
from runtime.grammars.json_schema.regex_match import is_empty, matches
from runtime.grammars.json_schema.regex_parser import parse_pattern
from runtime.grammars.matcher import GrammarError

TEXTS = ["".join(letters) for size in range(5) for letters in product("ab1", repeat=size)]


@pytest.mark.parametrize(
    "pattern",
    [
        "a", "^a", "a$", "^a$", "^$", "", "ab|ba", "^a|b$", "^(a|b1)+$", "(?:a|^b)1", "a*b+1?",
        "^[ab]{2,3}$", "[^a]", "^[^ab]*$", "a{2}", "^(a{0,2}b){1,2}$", r"\d", r"^\w+$", r"^\D*$",
        "^(?!a)", "^(?=a)(?!aa)", "(?!1)b$", "^(?!.*ab)", "a??b", "^.{2}$",
        "(?<name>a)b", r"\x61", "[a-]", r"[\]a]", r"^[\w1]$", "((a)|(b))1",
    ],
)  # fmt: skip
def test_the_same_texts_are_found(pattern: str) -> None:
    own = parse_pattern(pattern)
    python = re.compile(pattern.replace("(?<name>", "(?P<name>"))

    assert [t for t in TEXTS if matches(own, t)] == [t for t in TEXTS if python.search(t)]


@pytest.mark.parametrize(
    ("pattern", "inside", "outside"),
    [
        (r"^\d$", "7", "٧"),  # ECMA-262: ASCII digits only
        (r"^\w$", "_", "é"),
        (r"^\s$", "\ufeff", "\x1c"),
        (r"^.$", "\x85", "\u2028"),
        (r"^\p{Lu}$", "É", "é"),
        (r"^\p{Letter}$", "ß", "1"),
        (r"^\P{L}$", "1", "ß"),
        (r"^\u{1F388}$", "🎈", "x"),
        (r"^\ud83c\udf88$", "🎈", "x"),
        (r"^\cJ$", "\n", "J"),
        (r"^[\b]$", "\b", "b"),
        (r"^\-\/$", "-/", "-"),
    ],
)
def test_classes_and_escapes_mean_what_ecma_says(pattern: str, inside: str, outside: str) -> None:
    own = parse_pattern(pattern)

    assert matches(own, inside)
    assert not matches(own, outside)


@pytest.mark.parametrize(
    "pattern",
    [
        r"(a)\1", r"\bx", r"x\B", "(?<=a)b", "(?<!a)b", "a(?=b)", "a^b", "a$b", "(^a)*", "(a",
        "a)", "[a", "a**", "*a", "a{3,2}", "{", "x{a}", "[b-a]", r"\u12", r"\p{Foo}", r"\q", r"\07",
        "(?i)a", "(?>a)", "\\",
    ],
)  # fmt: skip
def test_what_is_invalid_or_cannot_be_had_exactly_is_refused(pattern: str) -> None:
    with pytest.raises(GrammarError):
        parse_pattern(pattern)


def test_a_conjunction_is_empty_only_if_no_text_is_in_all_parts() -> None:
    letters = parse_pattern("^[ab]+$")

    assert is_empty(both((letters, inverse(letters))))
    assert is_empty(both((letters, parse_pattern("1"))))
    assert is_empty(both((parse_pattern("^(aa)+$"), parse_pattern("^a(aa)*$"))))
    assert is_empty(both((parse_pattern("^ab?$"), length(3, None))))
    assert not is_empty(both((letters, inverse(words(["a", "b"])))))
    assert not is_empty(both((parse_pattern("^(ab)+$"), length(40, 41))))


def test_matching_does_not_slow_down_on_patterns_that_backtrack() -> None:
    evil = parse_pattern("^(a*)*b$")

    assert not matches(evil, "a" * 3_000)
    assert matches(evil, "a" * 3_000 + "b")
