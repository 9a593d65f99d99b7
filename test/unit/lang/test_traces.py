"""What a trace of a program shows, without a model."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel
from support.fake_language_backend import FakeBackend

from runtime import (
    ProgramState,
    assistant,
    function,
    gen,
    gen_int,
    select,
    system,
    tool_result,
    user,
)
from runtime.lang.errors import ProgramError, Unsupported
from runtime.lang.trace import ForkPart, OutputPart, RolePart, TextPart, Trace, ValuePart
from runtime.lang.transcript import Message, Prompt


class Person(BaseModel):
    name: str


@function
def capital(s: ProgramState, country: str, hint: str = "Think.") -> str:
    s += f"{hint} The capital of {country.strip()} is" + gen("city", max_tokens=8, stop=".")
    s += f". {s['city']} is" + select("size", [" big", " small"])
    return "done"


def _shape(trace: Trace) -> list[Any]:
    return [one.op.name if isinstance(one, OutputPart) else one for one in trace.parts]


def test_a_trace_tells_constant_text_values_and_outputs_apart() -> None:
    trace = capital.trace()

    assert _shape(trace) == [
        TextPart("Think. The capital of "),
        ValuePart("argument", "country"),
        TextPart(" is"),
        "city",
        TextPart(". "),
        ValuePart("variable", "city"),
        TextPart(" is"),
        "size",
    ]
    assert trace.ret_value == "done"
    first, second = trace.outputs
    assert first.sampling.explicit() == {"max_new_tokens": 8, "stop": "."}  # type: ignore[union-attr]
    assert second.choices == (" big", " small")  # type: ignore[union-attr]


def test_arguments_that_are_given_are_text_like_any_other() -> None:
    trace = capital.bind(hint="So:").trace("France")

    assert trace.parts[0] == TextPart("So: The capital of France is")
    assert trace.prefix == Prompt("So: The capital of France is")


def test_the_prefix_ends_with_the_last_whole_word_before_a_value() -> None:
    trace = capital.trace()

    assert trace.prefix_text == "Think. The capital of"
    assert trace.prefix_messages == []


def test_the_prefix_of_a_conversation_has_its_whole_messages_and_the_begun_one() -> None:
    @function
    def program(s: ProgramState, question: str) -> None:
        s += system("Be brief.")
        s += user("Hello.")
        s += user(f"My question: {question}")
        s += assistant(gen("a"))

    trace = program.trace()

    messages = (Message("system", "Be brief."), Message("user", "Hello."))
    assert trace.prefix == Prompt("My question:", messages, "user")
    assert trace.prefix_text == ""
    assert trace.prefix_messages == [one.wire() for one in messages]
    assert [one.role for one in trace.parts if isinstance(one, RolePart)] == [
        "system",
        "user",
        "user",
        "assistant",
    ]


def test_a_program_without_values_is_all_prefix_up_to_its_first_output() -> None:
    @function
    def chat(s: ProgramState) -> None:
        s += user("Hi.")
        s += assistant("Well," + gen("a"))

    @function
    def plain(s: ProgramState) -> None:
        s += "Once upon a ti" + gen("a")

    assert chat.trace().prefix == Prompt("Well,", (Message("user", "Hi."),), "assistant")
    assert plain.trace().prefix == Prompt("Once upon a ti")
    assert function(lambda s: None).trace().prefix == Prompt("")


def test_variables_have_the_types_that_a_run_gives_them() -> None:
    @function
    def program(s: ProgramState) -> list[Any]:
        s += (
            gen_int("i")
            + gen("f", dtype=float)
            + gen("b", dtype=bool)
            + gen("p", json_schema=Person)
        )
        s += gen("n", n=2) + select("c", ["x", "y"])
        s += user_name(s["p"])
        return [s["i"] + 1, s["f"], s["b"], len(s["n"]), s["c"], s.get_meta_info("c")]

    def user_name(person: Person) -> str:
        return f"Dear {person.name}"

    trace = program.trace()

    assert trace.ret_value[:5] == [1, 0.0, False, 2, "x"]
    assert trace.ret_value[5]["normalized_prompt_logprobs"] == [0.0, 0.0]
    assert trace.parts[-1] == ValuePart("variable", "p.name")


def test_branches_stand_where_they_begin() -> None:
    @function
    def program(s: ProgramState, topic: str) -> None:
        s += "Tips. "
        branches = s.fork(2)
        branches += [f"One on {topic}:", "Another:"]
        branches += gen("tip")
        branches.join()
        s += "So: " + "".join(s["tip"])

    trace = program.trace()

    fork = trace.parts[1]
    assert isinstance(fork, ForkPart)
    assert [branch[0] for branch in fork.branches] == [TextPart("One on "), TextPart("Another:")]
    assert fork.branches[0][1] == ValuePart("argument", "topic")
    assert [one.name for one in trace.outputs] == ["tip", "tip"]
    assert trace.parts[2:] == (
        TextPart("So: "),
        ValuePart("variable", "tip"),
        ValuePart("variable", "tip"),
    )


def test_a_branch_inside_a_message_goes_on_in_it() -> None:
    @function
    def program(s: ProgramState) -> None:
        s += user("Hi.")
        with s.assistant():
            s += "Well, "
            s.copy().__iadd__(gen("a"))

    trace = program.trace()

    message = trace.parts[1]
    assert isinstance(message, RolePart)
    fork = message.parts[1]
    assert isinstance(fork, ForkPart)
    assert isinstance(fork.branches[0][0], RolePart)


def test_async_programs_scopes_tools_and_parts_of_programs_can_be_traced() -> None:
    def add(x: int, y: int) -> int:
        return x + y

    @function
    def part(s: ProgramState) -> None:
        with s.var_scope("whole"):
            s += user("Add.")
            s += assistant(gen("a", tools=[add]))

    @function
    async def program(s: ProgramState) -> list[Any]:
        part(s)
        for call in await s.atool_calls("a"):
            s += tool_result(call, call.run())
        return [await s.aget("whole"), await s.atext()]

    trace = program.trace()

    assert [one.name for one in trace.outputs] == ["a"]
    assert trace.ret_value[0] == trace.ret_value[1]


def test_a_trace_is_shown_a_line_for_each_part() -> None:
    assert str(capital.trace()).splitlines() == [
        "text 'Think. The capital of '",
        "argument country",
        "text ' is'",
        "gen city: max_new_tokens=8, stop='.', type='text'",
        "text '. '",
        "variable city",
        "text ' is'",
        "select size: [' big', ' small']",
    ]


def test_a_trace_tells_what_a_backend_cannot_do_without_a_call() -> None:
    backend = FakeBackend(scores_choices=False)

    with pytest.raises(Unsupported, match="cannot score choices"):
        capital.trace(backend=backend)
    assert capital.trace(backend=FakeBackend()).outputs

    assert backend.log == []


def test_what_cannot_be_traced_is_told() -> None:
    @function
    def counts(s: ProgramState, number: int) -> None:
        for _ in range(number):
            s += gen("a")

    @function
    def endless(s: ProgramState) -> None:
        while True:
            s += gen_int("a")
            if s["a"] == 7:
                return

    with pytest.raises(ProgramError, match="counts cannot be traced: TypeError.*give trace"):
        counts.trace()
    assert len(counts.trace(number=3).outputs) == 3
    with pytest.raises(ProgramError, match="1000 outputs and no end"):
        endless.trace()
    with pytest.raises(ProgramError, match="takes no field 'tempo'"):
        counts.trace(tempo=1)


@pytest.mark.parametrize(
    ("look", "told"),
    [
        (lambda q: f"{len(q)}", "the argument 'q' .* its length"),
        (lambda q: "".join(f"- {one}" for one in q), "the argument 'q' .* what it is made of"),
        (lambda q: q[:3], "the argument 'q' .* a part of it"),
        (lambda q: q.upper(), r"the argument 'q' .* upper\(\)"),
        (lambda q: json.dumps({"q": q}), "what became of a value"),
        (lambda q: repr(q), "what became of a value"),
    ],
)
def test_a_program_that_looks_into_a_value_is_refused_instead_of_shown_wrongly(
    look: Callable[[str], str], told: str
) -> None:
    @function
    def program(s: ProgramState, q: str) -> None:
        s += "About: " + look(q) + gen("a")

    with pytest.raises(ProgramError, match=told):
        program.trace()
    assert isinstance(program.trace(q="1 2").parts[0], TextPart)


def test_a_value_that_is_asked_whether_it_is_there_is_there() -> None:
    @function
    def program(s: ProgramState, q: str) -> None:
        if q:
            s += q
        s += gen("a")
        s += s["a"]

    assert _shape(program.trace()) == [
        ValuePart("argument", "q"),
        "a",
        ValuePart("variable", "a"),
    ]
