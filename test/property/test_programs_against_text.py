"""Random programs: the text is the concatenation of its parts, and branches stay apart."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from support.fake_language_backend import FakeBackend

from runtime import ProgramState, function, gen, select
from runtime.lang.transcript import Prompt

TEXTS = st.text("ab \n", max_size=4)
# What a program does next: add text, let the model write, choose, go on in a branch, come back.
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("text"), TEXTS),
        st.tuples(st.just("gen"), st.just("")),
        st.tuples(st.just("select"), st.just("")),
        st.tuples(st.just("scope"), TEXTS),
        st.tuples(st.just("fork"), st.just("")),
        st.tuples(st.just("back"), st.just("")),
    ),
    max_size=25,
)


def _answer(prompt: Prompt) -> str:
    return f"<{len(prompt.text)}>"


@settings(max_examples=150, deadline=None)
@given(actions=ACTIONS, streams=st.booleans())
def test_text_equals_its_parts_in_every_branch(
    actions: list[tuple[str, str]], streams: bool
) -> None:
    states: list[ProgramState] = []
    expected: list[str] = []

    @function
    def program(s: ProgramState) -> None:
        states.append(s)
        expected.append("")
        current = 0
        for kind, text in actions:
            state = states[current]
            if kind == "text":
                state += text
                expected[current] += text
            elif kind == "gen":
                state += gen("x")
                expected[current] += f"<{len(expected[current])}>"
            elif kind == "select":
                state += select("y", ["long", "s"])
                expected[current] += "s"
            elif kind == "scope":
                with state.var_scope("z"):
                    state += text + gen()
                expected[current] += text + f"<{len(expected[current] + text)}>"
            elif kind == "fork":
                states.extend(state.fork(2))
                expected.extend([expected[current]] * 2)
                current = len(states) - 1
            else:
                current = 0

    state = program.run(backend=FakeBackend(_answer), stream=streams)

    assert state.text() == expected[0]
    assert [one.text() for one in states] == expected
    assert ["".join(one.text_iter()) for one in states] == expected
