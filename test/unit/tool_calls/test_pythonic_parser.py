"""Calls as a Python list, [f(a=1), g(b="x")]."""

from __future__ import annotations

import json

import pytest

from runtime.srt.tool_calls.pieces import ParsedAnswer, parse_answer
from runtime.srt.tool_calls.pythonic_parser import PythonicCallParser

NAMES = frozenset({"f", "g.h"})


def parse(text: str, *, was_cut: bool = False) -> ParsedAnswer:
    return parse_answer(PythonicCallParser(NAMES), text, was_cut)


def calls(answer: ParsedAnswer) -> list[tuple[str, object]]:
    return [(one.name, json.loads(one.arguments)) for one in answer.calls]


def test_calls_with_literals_of_every_kind_become_json() -> None:
    answer = parse(
        "[f(a=1, b=-2.5, c='it\\'s', d=True, e=None, f=[1, (2, 3)], g={'k': \"), (\"}), g.h()]"
    )

    expected = {
        "a": 1,
        "b": -2.5,
        "c": "it's",
        "d": True,
        "e": None,
        "f": [1, [2, 3]],
        "g": {"k": "), ("},
    }
    assert calls(answer) == [("f", expected), ("g.h", {})]
    assert answer.content == ""


def test_json_literals_are_taken_too() -> None:
    assert calls(parse('[f(a=true, b=null, c={"x": [false, "\\u00e9"]})]')) == [
        ("f", {"a": True, "b": None, "c": {"x": [False, "é"]}})
    ]


def test_text_after_the_list_is_content() -> None:
    answer = parse("[f(a=1)]\nThere you are.")

    assert answer.content == "There you are."
    assert calls(answer) == [("f", {"a": 1})]


@pytest.mark.parametrize(
    "text",
    [
        "hello",
        " [1, 2, 3]",
        "[]",
        "[unknown(a=1)]",
        '[f("positional")]',
        "[f(a=open('x'))]",
        "[f(",
        "",
    ],
)
def test_what_is_no_list_of_calls_stays_content(text: str) -> None:
    assert parse(text) == ParsedAnswer(text, [])


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("[f(a=1, b=oops)]", '{"a": 1'),
        ("[f(a=1, a=2)]", '{"a": 1'),
        ("[f(a=1, 5)]", '{"a": 1'),
    ],
)
def test_a_call_that_breaks_off_keeps_its_complete_arguments(text: str, kept: str) -> None:
    parser = PythonicCallParser(NAMES)

    answer = parse_answer(parser, text)

    assert answer.calls[0].arguments == kept
    assert answer.content == ""
    assert parser.has_incomplete_call


def test_a_cut_call_is_incomplete_and_shows_nothing_of_itself() -> None:
    parser = PythonicCallParser(NAMES)

    answer = parse_answer(parser, "[f(a=1, b='unfin", True)

    assert answer == ParsedAnswer("", answer.calls)
    assert answer.calls[0].arguments == '{"a": 1'
    assert parser.has_incomplete_call


def test_half_a_surrogate_pair_stays_an_escape() -> None:
    (call,) = parse("[f(a='\\ud800')]").calls

    assert call.arguments == '{"a": "\\ud800"}'
