"""Tool calls and thinking with the bundled model: what is promised about an answer holds."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest
from support.api_client import ApiClient
from support.server import Server, start_server

MODEL = "smollm2-135m-instruct"
ADD = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}, "days": {"enum": [1, 3, 7]}},
    "required": ["city", "days"],
    "additionalProperties": False,
}


def tool(name: str, schema: Any, **fields: Any) -> dict[str, Any]:
    function = {"name": name, "description": f"Does {name}.", "parameters": schema, **fields}
    return {"type": "function", "function": function}


TOOLS = [tool("add", ADD), tool("get_weather", CITY)]
NAMED_ADD = {"type": "function", "function": {"name": "add"}}


def is_sum(arguments: Any) -> bool:
    return set(arguments) == {"a", "b"} and all(type(one) is int for one in arguments.values())


def is_forecast(arguments: Any) -> bool:
    return (
        set(arguments) == {"city", "days"}
        and isinstance(arguments["city"], str)
        and len(arguments["city"]) <= 20
        and arguments["days"] in (1, 3, 7)
    )


CHECKS = {"add": is_sum, "get_weather": is_forecast}


def checked_calls(choice: Any) -> list[str]:
    """The names of the calls of a choice, whose arguments must satisfy their schemas."""
    calls = choice["message"].get("tool_calls") or []
    for call in calls:
        assert CHECKS[call["function"]["name"]](json.loads(call["function"]["arguments"])), call
    return [call["function"]["name"] for call in calls]


def test_a_named_call_is_that_call_with_arguments_of_its_schema(api: ApiClient) -> None:
    (choice,) = api.chat("Add 2 and 3", 100, tools=TOOLS, tool_choice=NAMED_ADD)["choices"]

    assert checked_calls(choice) == ["add"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None


def test_a_function_without_parameters_is_called_without_arguments(api: ApiClient) -> None:
    now = {"type": "function", "function": {"name": "now", "description": "The time of day"}}

    (choice,) = api.chat("What time is it?", 60, tools=[now], tool_choice="required")["choices"]

    for call in choice["message"]["tool_calls"]:
        assert json.loads(call["function"]["arguments"]) == {}


@pytest.mark.parametrize("temperature", [0, 1.5])
def test_required_calls_satisfy_their_schemas_at_any_temperature(
    api: ApiClient, temperature: float
) -> None:
    fields = {"tools": TOOLS, "tool_choice": "required", "temperature": temperature, "seed": 1}

    answer = api.chat("Weather in Paris, or 2 + 3?", 200, n=6, **fields)

    for choice in answer["choices"]:
        names = checked_calls(choice) if choice["finish_reason"] == "tool_calls" else ["cut"]
        assert names
        assert choice["message"]["content"] is None


def test_parallel_calls_can_be_forbidden(api: ApiClient) -> None:
    fields = {"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False}

    answer = api.chat("Add 2 and 3, then 4 and 5", 200, n=4, temperature=1, seed=2, **fields)

    for choice in answer["choices"]:
        assert len(checked_calls(choice)) == 1
        assert choice["finish_reason"] == "tool_calls"


@pytest.mark.parametrize("family", ["hermes", "llama3", "mistral", "pythonic"])
def test_every_family_is_written_and_read(family: str) -> None:
    with (
        start_server("--tool-call-parser", family, "--skip-server-warmup") as running,
        ApiClient(running.base_url) as api,
    ):
        for choice in ("required", NAMED_ADD):
            answer = api.chat("Add 2 and 3", 200, tools=TOOLS[:1], tool_choice=choice)
            assert set(checked_calls(answer["choices"][0])) == {"add"}
        strict = [tool("add", ADD, strict=True)]
        (free,) = api.chat("Say hello", 12, tools=strict, tool_choice="auto")["choices"]
        checked_calls(free)
        assert free["message"]["content"] or free["message"]["tool_calls"]


def test_a_stream_of_calls_is_the_whole_answer(api: ApiClient) -> None:
    body = {
        "messages": [{"role": "user", "content": "Add 2 and 3"}],
        "tools": TOOLS,
        "tool_choice": "required",
        "max_tokens": 200,
        "temperature": 0,
    }
    (whole,) = api.ok("/v1/chat/completions", body)["choices"]
    calls: dict[int, dict[str, str]] = {}
    finishes = []

    for event in api.events("/v1/chat/completions", body):
        (choice,) = event["choices"]
        assert not choice["delta"].get("content")
        finishes += [choice["finish_reason"]] if choice["finish_reason"] else []
        for delta in choice["delta"].get("tool_calls", []):
            call = calls.setdefault(delta["index"], {"name": "", "arguments": ""})
            for name, text in delta["function"].items():
                call[name] += text

    assert finishes == [whole["finish_reason"]]
    assert list(calls.values()) == [one["function"] for one in whole["message"]["tool_calls"]]
    assert list(calls) == list(range(len(calls)))


def test_a_call_that_cannot_fit_is_cut_honestly(api: ApiClient) -> None:
    long = {"type": "object", "properties": {"s": {"type": "string", "minLength": 200}}}
    tools = [tool("w", {**long, "required": ["s"]})]
    body = {
        "messages": [{"role": "user", "content": "w"}],
        "tools": tools,
        "tool_choice": "required",
        "max_tokens": 16,
    }

    events = api.events("/v1/chat/completions", body)

    choices = [one for event in events for one in event["choices"]]
    assert [one["finish_reason"] for one in choices if one["finish_reason"]] == ["length"]
    assert not any(one["delta"].get("content") for one in choices)


def test_a_conversation_with_calls_and_results_goes_on(api: ApiClient) -> None:
    (asked,) = api.chat("Add 2 and 3", 100, tools=TOOLS, tool_choice=NAMED_ADD)["choices"]
    (call,) = asked["message"]["tool_calls"]
    history = [
        {"role": "user", "content": "Add 2 and 3"},
        asked["message"],
        {"role": "tool", "tool_call_id": call["id"], "content": "5"},
    ]

    (choice,) = api.chat(history, 16, tools=TOOLS)["choices"]

    assert choice["message"]["content"] or choice["message"]["tool_calls"]


def test_constrained_and_free_requests_run_beside_each_other(api: ApiClient) -> None:
    (alone,) = api.chat("Say hi", 24)["choices"]

    def call(index: int) -> Any:
        if index % 3 == 2:
            return api.chat("Say hi", 24)["choices"][0]
        name = "add" if index % 3 else "get_weather"
        named = {"type": "function", "function": {"name": name}}
        return api.chat("Go", 150, tools=TOOLS, tool_choice=named)["choices"][0]

    with ThreadPoolExecutor(12) as threads:
        choices = list(threads.map(call, range(12)))

    for index, choice in enumerate(choices):
        if index % 3 == 2:
            assert choice["message"]["content"] == alone["message"]["content"]
        else:
            assert checked_calls(choice) == ["add" if index % 3 else "get_weather"]


def test_the_public_client_reads_the_calls(server: Server) -> None:
    base_url = server.base_url + "/v1"
    with openai.OpenAI(base_url=base_url, api_key="none", timeout=120, max_retries=0) as client:
        answer = client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "Weather in Paris?"}],
            tools=TOOLS,  # type: ignore[arg-type]  # plain dicts, as users write them
            tool_choice="required",
            max_tokens=120,
            temperature=0,
        )

    calls = answer.choices[0].message.tool_calls
    assert calls
    for call in calls:
        assert call.type == "function"
        assert CHECKS[call.function.name](json.loads(call.function.arguments))


# Thinking. The bundled model was not taught to think: what it writes before the mark is its answer.


@pytest.fixture(scope="module")
def thinking_api() -> Iterator[ApiClient]:
    flags = ("--reasoning-parser", "deepseek-r1", "--overlap-depth", "1", "--skip-server-warmup")
    with start_server(*flags) as running, ApiClient(running.base_url) as client:
        yield client
        client.wait_until_idle()


PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
AS_PERSON = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}


def test_a_schema_holds_for_the_answer_and_not_for_the_thinking(thinking_api: ApiClient) -> None:
    fields = {"response_format": AS_PERSON, "max_thinking_tokens": 12}

    answer = thinking_api.chat("Bob is 3. Extract.", 150, **fields)

    (choice,) = answer["choices"]
    assert set(json.loads(choice["message"]["content"])) == {"name", "age"}
    thinking = choice["message"]["reasoning_content"]
    assert 0 < len(thinking_api.tokenize(thinking)) <= 12
    assert "</think>" not in thinking + choice["message"]["content"]
    assert choice["finish_reason"] == "stop"


def test_thinking_leaves_room_for_the_answer_that_was_promised(thinking_api: ApiClient) -> None:
    (choice,) = thinking_api.chat("Bob is 3. Extract.", 60, response_format=AS_PERSON)["choices"]

    assert set(json.loads(choice["message"]["content"])) == {"name", "age"}
    assert choice["message"]["reasoning_content"]


def test_no_budget_and_no_thinking_go_straight_to_the_answer(thinking_api: ApiClient) -> None:
    none = {"response_format": AS_PERSON, "thinking_budget": 0}
    off = {"response_format": AS_PERSON, "chat_template_kwargs": {"enable_thinking": False}}

    for fields in (none, off):
        (choice,) = thinking_api.chat("Bob is 3. Extract.", 60, **fields)["choices"]
        assert choice["message"]["reasoning_content"] is None
        assert set(json.loads(choice["message"]["content"])) == {"name", "age"}


def test_a_call_is_forced_after_the_thinking(thinking_api: ApiClient) -> None:
    fields = {"tools": TOOLS[:1], "tool_choice": "required", "thinking_budget": 8}

    (choice,) = thinking_api.chat("Add 2 and 3", 150, **fields)["choices"]

    assert set(checked_calls(choice)) == {"add"}
    assert choice["message"]["reasoning_content"]


def test_a_budget_without_a_grammar_ends_the_thinking(thinking_api: ApiClient) -> None:
    (choice,) = thinking_api.chat("Tell me a long story.", 40, thinking_budget=10)["choices"]

    assert len(thinking_api.tokenize(choice["message"]["reasoning_content"])) <= 10
    assert choice["message"]["content"]


def test_streamed_thinking_is_that_of_the_whole_answer(thinking_api: ApiClient) -> None:
    body = {
        "messages": [{"role": "user", "content": "Bob is 3. Extract."}],
        "response_format": AS_PERSON,
        "max_thinking_tokens": 12,
        "max_tokens": 150,
        "temperature": 0,
    }
    (whole,) = thinking_api.ok("/v1/chat/completions", body)["choices"]

    events = thinking_api.events("/v1/chat/completions", body)

    deltas = [one["choices"][0]["delta"] for one in events]
    for name in ("reasoning_content", "content"):
        assert "".join(one.get(name) or "" for one in deltas) == whole["message"][name]
