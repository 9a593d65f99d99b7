"""What a program means: text, variables, roles, scopes, streaming, binding and nesting."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest
from support.fake_language_backend import FakeBackend

import runtime
from runtime import (
    ProgramState,
    assistant,
    function,
    gen,
    select,
    set_default_backend,
    system,
)
from runtime.lang.errors import ProgramError


def test_importing_the_language_loads_nothing_heavy() -> None:
    code = (
        "import sys; from runtime import function, gen, select, gen_int, gen_string, system, user, "
        "assistant, fork, set_default_backend, RuntimeEndpoint; "
        "print([n for n in ('torch', 'transformers', 'pydantic', 'openai', 'tqdm') "
        "if n in sys.modules])"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"


def test_every_public_name_can_be_imported_and_no_other() -> None:
    for name in runtime.__all__:
        assert getattr(runtime, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'generate'"):
        runtime.generate  # noqa: B018


def test_the_model_goes_on_from_all_text_before_it() -> None:
    backend = FakeBackend(lambda prompt: f"[{len(prompt.text)}]")

    @function
    def program(s: ProgramState) -> str:
        s += "one " + gen("a") + " two "
        s += gen("b")
        return "kept"

    state = program.run(backend=backend)

    assert [prompt.text for prompt in backend.prompts] == ["one ", "one [4] two "]
    assert (state["a"], state["b"]) == ("[4]", "[12]")
    assert state.text() == "one [4] two [12]"
    assert state.ret_value == "kept"


def test_a_program_may_read_what_the_model_wrote_and_go_on_with_it() -> None:
    @function
    def program(s: ProgramState) -> None:
        s += gen("a")
        s += "again: " + s["a"]

    assert program.run(backend=FakeBackend()).text() == "<out>again: <out>"


def test_roles_become_messages_and_the_open_one_is_the_prompt() -> None:
    backend = FakeBackend(lambda prompt: "fine")

    @function
    def program(s: ProgramState) -> None:
        s += system("Be brief.")
        with s.user():
            s += "How are "
            s += "you?"
        s += assistant("I am " + gen("mood"))

    state = program.run(backend=backend)

    assert state.messages() == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "How are you?"},
        {"role": "assistant", "content": "I am fine"},
    ]
    (prompt,) = backend.prompts
    assert (prompt.open_role, prompt.text, len(prompt.messages)) == ("assistant", "I am ", 2)


def test_a_select_is_a_call_whose_winner_joins_the_text() -> None:
    backend = FakeBackend()

    @function
    def program(s: ProgramState) -> None:
        s += "pick: " + select("c", ["long one", "short"])

    state = program.run(backend=backend)

    assert state["c"] == "short"
    assert state.text() == "pick: short"
    assert state.get_meta_info("c")["normalized_prompt_logprobs"] == [-8.0, -5.0]


def test_a_scope_is_the_text_that_was_added_in_it() -> None:
    @function
    def program(s: ProgramState) -> None:
        s += "before "
        with s.var_scope("middle"):
            s += "a " + gen()
        s += " after"

    assert program.run(backend=FakeBackend())["middle"] == "a <out>"


def test_several_samples_are_a_list_and_the_text_goes_on_with_the_first() -> None:
    @function
    def program(s: ProgramState) -> None:
        s += gen("a", n=3)

    state = program.run(backend=FakeBackend())

    assert state["a"] == ["<out>"] * 3
    assert state.text() == "<out>"
    assert len(state.get_meta_info("a")) == 3


def test_sampling_of_the_run_holds_where_a_gen_sets_none() -> None:
    backend = FakeBackend()

    @function
    def program(s: ProgramState, topic: str) -> None:
        s += topic + gen(max_tokens=3) + gen()

    program.run(topic="x", backend=backend, temperature=0.5, max_new_tokens=9)

    assert [one.max_new_tokens for one in backend.sampling] == [3, 9]
    assert [one.temperature for one in backend.sampling] == [0.5, 0.5]

    program.run(topic="x", backend=backend, max_tokens=7)  # under the name that gen has for it
    assert [one.max_new_tokens for one in backend.sampling] == [3, 9, 3, 7]


def test_bound_arguments_and_the_default_backend_are_used() -> None:
    @function
    def program(s: ProgramState, a: str, b: str) -> None:
        s += a + b + gen("x")

    set_default_backend(FakeBackend())
    try:
        assert program.bind(a="1").run(b="2").text() == "12<out>"
    finally:
        set_default_backend(None)
    with pytest.raises(ProgramError, match="there is no backend"):
        program.run("1", "2")


def test_a_program_called_with_a_state_becomes_part_of_the_other() -> None:
    @function
    def part(s: ProgramState, text: str) -> None:
        s += text + gen("inner")

    @function
    def whole(s: ProgramState) -> None:
        s += "a "
        part(s, "b ")

    assert whole.run(backend=FakeBackend()).text() == "a b <out>"


def test_streamed_text_comes_in_pieces_that_add_up() -> None:
    @function
    def program(s: ProgramState) -> None:
        s += "say " + gen("a") + "!"

    backend = FakeBackend(delay_seconds=0.01)
    state = program.run(backend=backend, stream=True)
    of_variable = list(state.text_iter("a"))
    whole = list(state.text_iter())

    assert of_variable == list("<out>")
    assert "".join(whole) == state.text() == "say <out>!"
    assert len(whole) > 3


def test_samples_of_one_gen_are_streamed_side_by_side() -> None:
    @function
    def program(s: ProgramState) -> None:
        s += "x" + gen("a", n=3) + "!"

    texts = iter(["one", "two, ", "three"])
    state = program.run(backend=FakeBackend(lambda prompt: next(texts)), stream=True)

    assert list(state.text_iter("a", sample=1)) == ["t", "w", "o", ",", " "]
    assert list(state.text_iter("a", sample=2)) == ["t", "h", "r", "e", "e"]
    assert list(state.text_iter("a")) == ["o", "n", "e"]
    assert "".join(state.text_iter()) == "xone!" == state.text()
    assert state["a"] == ["one", "two, ", "three"]


def test_a_reader_of_a_stream_waits_for_a_name_that_is_yet_to_come() -> None:
    @function
    def program(s: ProgramState) -> None:
        s += gen("first")
        s["first"]
        s += gen("second")

    state = program.run(backend=FakeBackend(delay_seconds=0.02), stream=True)

    assert state["second"] == "<out>"
    with pytest.raises(KeyError, match="no variable 'third'"):
        state["third"]


def test_async_programs_do_the_same() -> None:
    @function
    async def program(s: ProgramState, word: str) -> str:
        s += word + gen("a")
        got = await s.aget("a")
        s += " and " + got
        return await s.atext()

    async def use() -> tuple[ProgramState, list[str]]:
        state = await program.arun("w", backend=FakeBackend())
        streamed = await program.arun("w", backend=FakeBackend(), stream=True)
        return state, [piece async for piece in streamed.text_async_iter("a")]

    state, pieces = asyncio.run(use())

    assert state.ret_value == state.text() == "w<out> and <out>"
    assert pieces == list("<out>")
    assert program.run("w", backend=FakeBackend()).text() == "w<out> and <out>"


def test_a_plain_program_may_be_awaited() -> None:
    @function
    def program(s: ProgramState) -> None:
        s += gen("a")
        s += s["a"]

    async def use() -> ProgramState:
        return await program.arun(backend=FakeBackend())

    assert asyncio.run(use()).text() == "<out><out>"


def test_blocking_in_an_async_program_is_refused_instead_of_hanging() -> None:
    @function
    async def program(s: ProgramState) -> None:
        s += gen("a")
        s["a"]

    with pytest.raises(ProgramError, match="await s.aget"):
        program.run(backend=FakeBackend(delay_seconds=0.05))


def test_a_scope_becomes_a_variable_at_its_end_and_until_then_the_name_is_what_it_was() -> None:
    @function
    def program(s: ProgramState) -> tuple[str, str]:
        s.set_var("part", "before")
        with s.var_scope("part"):
            s += "one " + gen("a")
            inside = s["part"]
        return inside, s["part"]

    assert program.run(backend=FakeBackend()).ret_value == ("before", "one <out>")


def test_a_scope_is_not_waited_for_by_what_stands_in_it() -> None:
    @function
    def program(s: ProgramState) -> None:
        with s.var_scope("part"):
            s += "text"
            s["part"]

    with pytest.raises(KeyError, match="no variable 'part'"):
        program.run(backend=FakeBackend())


@pytest.mark.parametrize("stream", [False, True])
def test_what_a_scope_spans_and_what_was_set_is_followed_whole(stream: bool) -> None:
    @function
    def program(s: ProgramState) -> None:
        with s.var_scope("part"):
            s += "one " + gen("a") + " two"
        s.set_var("text", "given")
        s.set_var("number", 3)

    state = program.run(backend=FakeBackend(), stream=stream)

    async def collected(name: str) -> list[str]:
        return [one async for one in state.text_async_iter(name)]

    assert list(state.text_iter("part")) == ["one <out> two"]
    assert asyncio.run(collected("part")) == ["one <out> two"]
    assert list(state.text_iter("text")) == ["given"]
    assert list(state.text_iter("number")) == []


def test_a_parameter_that_run_would_take_for_itself_is_told_at_once() -> None:
    with pytest.raises(ProgramError, match="program has a parameter backend, which is an argument"):

        @function
        def program(s: ProgramState, backend: str) -> None:
            s += backend

    with pytest.raises(ProgramError, match="takes a function, not a str"):
        function("program")  # type: ignore[arg-type]  # a mistake


def test_a_gen_that_is_given_no_name_where_one_belongs_is_told() -> None:
    for make in (lambda: gen(32), lambda: select(["a", "b"])):  # type: ignore[arg-type]  # mistakes
        with pytest.raises(ProgramError, match="it is the name of the variable, a text"):
            make()


def test_choices_take_neither_samples_nor_a_temperature() -> None:
    with pytest.raises(ProgramError, match="'a' has choices and n = 2"):
        gen("a", choices=["x", "y"], n=2)
    with pytest.raises(ProgramError, match="select takes the best"):
        gen("a", choices=["x", "y"], temperature=0.7)

    gen("a", choices=["x", "y"], n=1, temperature=0)
