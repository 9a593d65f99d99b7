"""Typed variables: the value has the type that the gen names, or the wait tells why not."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field
from support.fake_language_backend import FakeBackend

from runtime import ProgramState, function, gen, gen_int, gen_string
from runtime.lang.errors import InvalidOutput, ProgramError
from runtime.lang.value_types import type_of_schema


class Pet(BaseModel):
    name: str
    legs: int


@dataclass
class Point:
    x: int
    y: int


class Box(BaseModel):
    pet: Pet
    weight: float = Field(gt=0)


class Numbers(BaseModel):
    all: list[int]


@dataclass
class Pair:
    x: int
    y: int

    def __post_init__(self) -> None:
        if self.x > self.y:
            raise ValueError("x is above y")


def _run(expression: Any, answer: str, finish: str = "stop") -> tuple[ProgramState, FakeBackend]:
    backend = FakeBackend(lambda prompt: answer, finish=finish)

    @function
    def program(s: ProgramState) -> None:
        s += expression

    return program.run(backend=backend), backend


@pytest.mark.parametrize(
    ("dtype", "text", "value"),
    [
        (int, "-42", -42),
        (int, "7", 7),
        (float, "3.25", 3.25),
        (float, "10", 10.0),
        (bool, "True", True),
        (bool, "False", False),
        (str, '"two words"', "two words"),
        (str, r'"a \"quoted\" one"', 'a "quoted" one'),
    ],
)
def test_the_value_has_the_type_and_the_constraint_admits_it(
    dtype: type, text: str, value: Any
) -> None:
    state, backend = _run(gen("v", dtype=dtype), text)

    assert state["v"] == value
    assert type(state["v"]) is dtype
    assert state.text() == text
    regex = backend.sampling[0].regex
    assert regex is not None and re.fullmatch(regex, text)


@pytest.mark.parametrize(("dtype", "text"), [(int, "1.5"), (float, "x"), (bool, "1"), (str, "a")])
def test_the_constraint_admits_nothing_else(dtype: type, text: str) -> None:
    _, backend = _run(gen("v", dtype=str), '"x"')
    expression = gen("v", dtype=dtype)

    regex = expression.sampling.regex  # type: ignore[union-attr]  # a gen, as it has no choices
    assert regex is not None and not re.fullmatch(regex, text)


def test_gen_int_and_gen_string_are_short_for_dtype() -> None:
    assert _run(gen_int("v", max_tokens=3), "5")[0]["v"] == 5
    assert _run(gen_string("v", stop="!"), '"five"')[0]["v"] == "five"


def test_a_class_as_schema_makes_instances() -> None:
    assert _run(gen("v", json_schema=Pet), '{"name": "Rex", "legs": 4}')[0]["v"] == Pet(
        name="Rex", legs=4
    )
    state, backend = _run(gen("v", json_schema=Point, n=2), '{"x": 1, "y": 2}')

    assert state["v"] == [Point(1, 2), Point(1, 2)]
    schema = json.loads(backend.sampling[0].json_schema or "")
    assert set(schema["properties"]) == {"x", "y"}


class Thing:
    """Of no type that has a schema."""


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        (list[int], "[1, 2]", [1, 2]),
        (dict[str, float], '{"a": 1}', {"a": 1.0}),
        (Literal["a", "b"], '"b"', "b"),
        (list[Point], '[{"x": 1, "y": 2}]', [Point(1, 2)]),
    ],
    ids=str,
)
def test_a_type_as_schema_makes_values_of_it(schema: Any, text: str, value: Any) -> None:
    state, backend = _run(gen("v", json_schema=schema), text)

    assert state["v"] == value
    assert json.loads(backend.sampling[0].json_schema or "")


@pytest.mark.parametrize("schema", [{"type": "object"}, '{"type": "object"}'])
def test_a_schema_without_a_class_leaves_text(schema: Any) -> None:
    state, backend = _run(gen("v", json_schema=schema), '{"a": 1}')

    assert state["v"] == '{"a": 1}'
    assert json.loads(backend.sampling[0].json_schema or "") == {"type": "object"}


@pytest.mark.parametrize("schema", [Pet, {"type": "object"}, '{"type": "object"}'])
def test_a_schema_of_the_run_constrains_what_sets_no_form(schema: Any) -> None:
    backend = FakeBackend(lambda prompt: "{}")

    @function
    def program(s: ProgramState) -> None:
        s += gen("v")

    state = program.run(backend=backend, json_schema=schema)

    assert json.loads(backend.sampling[0].json_schema or "")["type"] == "object"
    assert state["v"] == "{}"


def test_an_output_that_was_cut_is_told_with_the_remedy() -> None:
    with pytest.raises(
        InvalidOutput, match=r"'v' is no Pet \(.*EOF.*\(finish_reason length\); raise"
    ):
        _run(gen("v", json_schema=Pet), '{"name": "Re', finish="length")


def test_an_output_that_does_not_fit_is_told_with_the_fields_and_why() -> None:
    with pytest.raises(InvalidOutput) as caught:
        _run(gen("v", json_schema=Box), '{"pet": {"legs": "four"}, "weight": -1}')
    message = str(caught.value)

    assert "'v' is no Box (pet.name: Field required; pet.legs: Input should be" in message
    assert "; weight: Input should be greater than 0): '" in message
    with pytest.raises(InvalidOutput, match=r"no Pair \(Value error, x is above y\): '"):
        _run(gen("v", json_schema=Pair), '{"x": 2, "y": 1}')
    with pytest.raises(InvalidOutput, match=r"no JSON \(Expecting value: line 1 column 7"):
        _run(gen("v", json_schema={}), '{"a": ')


def test_of_many_wrong_fields_the_first_are_named() -> None:
    with pytest.raises(InvalidOutput, match=r"no Numbers \(all.0: .*; all.3: [^;]*; 2 more\)"):
        type_of_schema(Numbers).value('{"all": ["a", "b", "c", "d", "e", "f"]}', "v", "stop")


def test_more_than_one_form_and_what_is_no_type_are_refused() -> None:
    with pytest.raises(ProgramError, match="gen has dtype and regex"):
        gen("v", dtype=int, regex="[0-9]")
    with pytest.raises(ProgramError, match="dtype is list; it must be int"):
        gen("v", dtype=list)
    with pytest.raises(ProgramError, match=r"json_schema is list\[.*Thing.*no schema"):
        gen("v", json_schema=list[Thing])
    with pytest.raises(ProgramError, match="json_schema is of type int"):
        gen("v", json_schema=3)
    with pytest.raises(ProgramError, match="json_schema is text that is no JSON: Expecting"):
        gen("v", json_schema="a schema")
    with pytest.raises(ProgramError, match=r"regex '\[0-' is none"):
        gen("v", regex="[0-")
