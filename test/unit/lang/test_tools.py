"""Tools that a gen offers, the calls that come back, and their results in the conversation."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pydantic import BaseModel
from support.fake_language_backend import FakeBackend

from runtime import ProgramState, assistant, function, gen, tool_result, user
from runtime.lang.errors import InvalidOutput, ProgramError, Unsupported
from runtime.lang.tools import ToolCall, tool_offer
from runtime.lang.transcript import Message, Prompt


class Place(BaseModel):
    city: str


def weather(place: Place, days: int = 1) -> dict[str, Any]:
    """The weather of a place."""
    return {"city": place.city, "days": days}


def fails(x: int) -> int:
    raise OSError(f"no {x}")


DICT_TOOL = {
    "type": "function",
    "function": {"name": "search", "parameters": {"type": "object", "properties": {}}},
}


def _calls_once(prompt: Prompt) -> str:
    if prompt.messages[-1].role == "tool":
        return "It will rain."
    return 'weather{"place": {"city": "Oslo"}, "days": 2}'


@function
def agent(s: ProgramState) -> str:
    s += user("What will the weather be?")
    for _ in range(3):
        s += assistant(gen("answer", tools=[weather, DICT_TOOL]))
        if not s.tool_calls("answer"):
            break
        for call in s.tool_calls("answer"):
            s += tool_result(call, call.run())
    return str(s["answer"])


def test_a_program_calls_what_the_model_asks_for_and_goes_on_with_the_result() -> None:
    backend = FakeBackend(_calls_once)

    state = agent.run(backend=backend)

    assert state.ret_value == "It will rain."
    call = ToolCall("call-1", "weather", '{"place": {"city": "Oslo"}, "days": 2}')
    assert backend.prompts[1].messages == (
        Message("user", "What will the weather be?"),
        Message("assistant", "", calls=(call,)),
        Message("tool", '{"city": "Oslo", "days": 2}', call_id="call-1"),
    )
    assert state.messages()[1:3] == [
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": "call-1",
                    "type": "function",
                    "function": {"name": "weather", "arguments": call.arguments_text},
                }
            ],
        },
        {
            "role": "tool",
            "content": '{"city": "Oslo", "days": 2}',
            "tool_call_id": "call-1",
        },
    ]


def test_a_function_is_offered_with_its_schema_and_docstring() -> None:
    offer = tool_offer([weather, DICT_TOOL], "weather", False)

    fields = offer.fields()
    first = fields["tools"][0]["function"]
    assert (first["name"], first["description"]) == ("weather", "The weather of a place.")
    assert first["parameters"]["required"] == ["place"]
    assert first["parameters"]["properties"]["days"]["type"] == "integer"
    assert fields["tools"][1] == DICT_TOOL
    assert fields["tool_choice"] == {"type": "function", "function": {"name": "weather"}}
    assert fields["parallel_tool_calls"] is False


def test_a_call_runs_its_function_with_arguments_of_the_annotated_types() -> None:
    async def later(x: int) -> int:
        return x + 1

    assert ToolCall("1", "weather", '{"place": {"city": "Rome"}}', weather).run() == {
        "city": "Rome",
        "days": 1,
    }
    assert asyncio.run(ToolCall("1", "later", '{"x": 1}', later).run()) == 2
    with pytest.raises(OSError, match="no 3"):
        ToolCall("1", "fails", '{"x": 3}', fails).run()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"x": "many"}', "fails does not take these arguments: x: .*integer"),
        ("{}", "x: Missing"),
        ('{"x": 1, "y": 2}', "y: Unexpected"),
        ('{"x": ', "no JSON object.*raise max_tokens"),
        ("[1]", "no JSON object"),
    ],
)
def test_arguments_that_do_not_fit_are_named(text: str, words: str) -> None:
    with pytest.raises(InvalidOutput, match=words):
        ToolCall("1", "fails", text, fails).run()


def test_a_tool_that_was_given_as_a_dict_has_no_function() -> None:
    with pytest.raises(ProgramError, match="search was offered as a dict"):
        ToolCall("1", "search", "{}").run()


def test_several_samples_have_their_own_calls_and_the_text_goes_on_with_the_first() -> None:
    @function
    def program(s: ProgramState) -> None:
        s += user("?") + assistant(gen("a", tools=[weather], n=2))

    state = program.run(backend=FakeBackend(lambda prompt: "weather{}"))

    metas = state.get_meta_info("a")
    assert [len(one["tool_calls"]) for one in metas] == [1, 1]
    assert state.tool_calls("a") == metas[0]["tool_calls"]
    assert state["a"] == ["", ""]


def test_async_programs_have_calls_too_and_other_variables_have_none() -> None:
    @function
    async def program(s: ProgramState) -> int:
        s += user("?") + assistant(gen("a", tools=[weather]))
        s += user("!") + assistant(gen("b"))
        with pytest.raises(ProgramError, match="'b' has no tool calls"):
            await s.atool_calls("b")
        return len(await s.atool_calls("a"))

    state = asyncio.run(program.arun(backend=FakeBackend(lambda prompt: "weather{}")))

    assert state.ret_value == 1


def test_what_cannot_be_offered_is_refused() -> None:
    def loose(*words: str) -> None: ...

    def untyped(x: object()) -> None: ...  # type: ignore[valid-type]

    cases: list[tuple[dict[str, Any], str]] = [
        ({"tools": []}, "at least one"),
        ({"tools": "weather"}, "must be a list"),
        ({"tools": [3]}, "of type int"),
        ({"tools": [{"name": "x"}]}, "OpenAI's form"),
        ({"tools": [weather, weather]}, "two tools with the name 'weather'"),
        ({"tools": [loose]}, r"parameter \*words"),
        ({"tools": [untyped]}, "have no JSON schema"),
        ({"tools": [lambda x: x]}, "has no name"),
        ({"tools": [weather], "tool_choice": "wether"}, "must be one of auto, none, required"),
        ({"tool_choice": "auto"}, "tool_choice without tools"),
        ({"parallel_tool_calls": True}, "parallel_tool_calls without tools"),
        ({"tools": [weather], "regex": "x"}, "regex and tools"),
        ({"tools": [weather], "return_logprob": True}, "tools and log-probabilities"),
    ]
    for fields, words in cases:
        with pytest.raises(ProgramError, match=words):
            gen("a", **fields)


def test_tools_are_refused_before_any_call_where_they_cannot_be_offered() -> None:
    @function
    def plain(s: ProgramState) -> None:
        s += "x" + gen("a", tools=[weather])

    @function
    def begun(s: ProgramState) -> None:
        s += user("?") + assistant("Well, " + gen("a", tools=[weather]))

    without = FakeBackend(calls_tools=False)
    with pytest.raises(Unsupported, match="takes no tools, which 'answer' offers"):
        agent.run(backend=without)
    backend = FakeBackend()
    for program in (plain, begun):
        with pytest.raises(ProgramError, match="must be all that is in an assistant"):
            program.run(backend=backend)

    assert without.prompts == backend.prompts == []


def test_a_result_is_text_or_json() -> None:
    call = ToolCall("1", "f", "{}")

    assert tool_result(call, "as it is").text == "as it is"
    assert tool_result(call, [1, None]).text == "[1, null]"
    with pytest.raises(ProgramError, match="of type object"):
        tool_result(call, object())


def test_branches_after_a_call_have_a_beginning_that_can_be_rendered() -> None:
    @function
    def program(s: ProgramState) -> None:
        s += user("?") + assistant(gen("a", tools=[weather]))
        for branch in s.fork(2):
            branch += tool_result(branch.tool_calls("a")[0], "rain")
            branch += assistant(gen("b"))

    backend = FakeBackend(lambda prompt: "weather{}")

    program.run(backend=backend)

    assert backend.commits == [Prompt("", (Message("user", "?"),), "assistant")]
