"""POST /v1/chat/completions as OpenAI clients see it."""

from __future__ import annotations

from typing import Any

import pytest
from support.fake_engine import CONTEXT_LENGTH, END_ID, FakeServer
from support.http_calls import events

from runtime.srt.messages import FinishReason

HI = [{"role": "user", "content": "hi"}]


@pytest.fixture
def server() -> FakeServer:
    return FakeServer()


def chat(server: FakeServer, **fields: Any) -> Any:
    body = {"messages": HI, "max_tokens": 3, **fields}
    reply = server.post("/v1/chat/completions", body)
    assert reply.status_code == 200, reply.text
    return reply.json()


def stream(server: FakeServer, **fields: Any) -> list[Any]:
    body = {"messages": HI, "max_tokens": 3, "stream": True, **fields}
    reply = server.post("/v1/chat/completions", body)
    assert reply.status_code == 200, reply.text
    return events(reply.text)


def prompt_of(server: FakeServer, **fields: Any) -> str:
    chat(server, **fields)
    return server.client.tokenizer.decode(
        server.engine.requests[-1].input_ids, skip_special_tokens=False
    )


def test_the_answer_has_openais_shape(server: FakeServer) -> None:
    server.engine.output = lambda request: [97, END_ID]
    server.engine.finish = lambda request: FinishReason(type="stop", matched=END_ID)

    reply = chat(server, user="me", store=True, metadata={})

    assert reply["id"].startswith("chatcmpl-")
    assert reply["object"] == "chat.completion"
    assert reply["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "a", "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
            "matched_stop": END_ID,
        }
    ]
    assert reply["usage"]["completion_tokens"] == 2
    assert reply["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}


def test_the_prompt_is_the_templates_and_special_tokens_are_single(server: FakeServer) -> None:
    prompt = prompt_of(server)

    assert prompt == "<|start|>user\nhi<|end|>\n<|start|>assistant\n"
    assert END_ID in server.engine.requests[0].input_ids


@pytest.mark.parametrize(
    ("messages", "shown"),
    [
        ([{"role": "system", "content": "s"}], "<|start|>system\ns"),
        ([{"role": "developer", "content": "d"}], "<|start|>system\nd"),
        ([{"role": "assistant", "content": "a"}], "<|start|>assistant\na"),
        ([{"role": "assistant", "content": None}, *HI], "<|start|>assistant\n<|end|>"),
        ([{"role": "user", "content": [{"type": "text", "text": "p"}]}], "<|start|>user\np"),
    ],
)
def test_every_role_and_form_of_content_is_taken(
    server: FakeServer, messages: Any, shown: str
) -> None:
    assert prompt_of(server, messages=messages).startswith(shown)


def test_the_final_message_can_be_continued(server: FakeServer) -> None:
    messages = [*HI, {"role": "assistant", "content": "The answer"}]

    prompt = prompt_of(server, messages=messages, continue_final_message=True)

    assert prompt.endswith("<|start|>assistant\nThe answer")


def test_the_generation_prompt_can_be_left_out(server: FakeServer) -> None:
    assert prompt_of(server, add_generation_prompt=False).endswith("<|end|>\n")


def test_without_a_limit_the_answer_may_fill_the_context(server: FakeServer) -> None:
    chat(server, max_tokens=None)

    request = server.engine.requests[0]
    assert request.sampling.max_new_tokens == CONTEXT_LENGTH - len(request.input_ids)


def test_max_completion_tokens_is_the_newer_name(server: FakeServer) -> None:
    chat(server, max_tokens=None, max_completion_tokens=7)

    assert server.engine.requests[0].sampling.max_new_tokens == 7


def test_both_names_of_the_limit_must_agree(server: FakeServer) -> None:
    chat(server, max_tokens=7, max_completion_tokens=7)
    assert server.engine.requests[0].sampling.max_new_tokens == 7

    body = {"messages": HI, "max_tokens": 8, "max_completion_tokens": 7}
    error = server.post("/v1/chat/completions", body).json()["error"]
    assert error["param"] == "max_completion_tokens"
    assert "max_tokens is 8 and max_completion_tokens is 7" in error["message"]


def test_samples_are_choices(server: FakeServer) -> None:
    reply = chat(server, n=3)

    assert [one["index"] for one in reply["choices"]] == [0, 1, 2]
    assert reply["usage"]["prompt_tokens"] == len(server.engine.requests[0].input_ids)


def test_logprobs_have_the_bytes_of_the_vocabulary(server: FakeServer) -> None:
    server.engine.output = lambda request: list("é".encode())

    content = chat(server, logprobs=True, top_logprobs=2)["choices"][0]["logprobs"]["content"]

    assert [one["bytes"] for one in content] == [[0xC3], [0xA9]]
    assert [len(one["top_logprobs"]) for one in content] == [2, 2]
    assert content[0]["logprob"] == -0.5


def test_a_stream_is_role_content_one_finish_and_done(server: FakeServer) -> None:
    seen = stream(server)

    assert seen[-1] == "[DONE]"
    deltas = [one["choices"][0]["delta"] for one in seen[:-1]]
    assert deltas == [
        {"role": "assistant", "content": ""},
        {"content": "a"},
        {"content": "b"},
        {"content": "c"},
        {},
    ]
    finishes = [one["choices"][0]["finish_reason"] for one in seen[:-1]]
    assert finishes == [None, None, None, None, "length"]


def test_every_sample_of_a_stream_has_its_role_and_finish(server: FakeServer) -> None:
    roles: list[int] = []
    finished: list[int] = []
    for one in stream(server, n=3)[:-1]:
        choice = one["choices"][0]
        assert choice["index"] not in finished
        if "role" in choice["delta"]:
            roles.append(choice["index"])
        if choice["finish_reason"]:
            finished.append(choice["index"])

    assert sorted(roles) == sorted(finished) == [0, 1, 2]


@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}])
def test_streams_have_no_usage_unless_asked(server: FakeServer, options: Any) -> None:
    assert all("usage" not in one for one in stream(server, stream_options=options)[:-1])


def test_the_usage_chunk_is_the_last_and_has_no_choices(server: FakeServer) -> None:
    seen = stream(server, stream_options={"include_usage": True})

    with_usage = [one for one in seen[:-1] if one["usage"]]
    assert with_usage == [seen[-2]]
    assert seen[-2]["choices"] == []
    assert seen[-2]["usage"]["completion_tokens"] == 3


def test_streamed_logprobs_belong_to_their_tokens(server: FakeServer) -> None:
    server.engine.output = lambda request: list("é!".encode())

    seen = stream(server, logprobs=True)

    logprobs = [one["choices"][0]["logprobs"] for one in seen[:-1]]
    counts = [len(one["content"]) for one in logprobs if one is not None]
    assert sum(counts) == 3 and min(counts) == 1


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": None}, "messages"),
        ({"messages": [{"role": "bot", "content": "x"}]}, "messages.0.role"),
        ({"messages": [{"role": "user", "content": None}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages"),
        ({"messages": [{"content": "x"}]}, "messages.0.role"),
        ({"temperature": -1}, "temperature"),
        ({"max_tokens": CONTEXT_LENGTH}, "max_tokens"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"top_logprobs": 21, "logprobs": True}, "top_logprobs"),
        ({"logprobs": 1}, "logprobs"),
        ({"chat_template_kwargs": 5}, "chat_template_kwargs"),
        ({"continue_final_message": True}, "continue_final_message"),
        (
            {
                "messages": [{"role": "assistant", "content": "a"}],
                "continue_final_message": True,
                "add_generation_prompt": True,
            },
            "continue_final_message",
        ),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"function_call": {"name": "f"}}, "function_call"),
        ({"response_format": "json_object"}, "response_format"),
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"response_format": {"type": "text", "schema": {}}}, "response_format.type"),
        ({"response_format": {"type": "text", "json_schema": {}}}, "response_format.type"),
        ({"response_format": {"type": "json_object", "json_schema": {}}}, "response_format.type"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {}}},
            "response_format.json_schema.schema",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": 5}}}},
            "response_format.json_schema.schema",
        ),
        ({"reasoning_effort": "hihg"}, "reasoning_effort"),
        ({"reasoning_effort": 3}, "reasoning_effort"),
        ({"modalities": ["audio"]}, "modalities"),
    ],
)
def test_mistakes_and_what_is_not_offered_are_named(
    server: FakeServer, fields: dict[str, Any], param: str
) -> None:
    reply = server.post("/v1/chat/completions", {"messages": HI, **fields})

    assert reply.status_code == 400, reply.text
    assert reply.json()["error"]["param"] == param
    assert server.engine.requests == []


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {"type": "text"}},
        {"response_format": None},
        {"tools": []},
        {"tools": None, "tool_choice": "none"},
        {"parallel_tool_calls": True},
        {"reasoning_effort": None},
        {"modalities": ["text"]},
        {"stream_options": {"include_usage": True}},
    ],
)
def test_asking_for_nothing_special_is_fine(server: FakeServer, fields: dict[str, Any]) -> None:
    chat(server, **fields)


def test_a_context_that_is_too_short_has_openais_code(server: FakeServer) -> None:
    messages = [{"role": "user", "content": "x" * CONTEXT_LENGTH}]

    reply = server.post("/v1/chat/completions", {"messages": messages})

    assert reply.status_code == 400
    assert reply.json()["error"]["code"] == "context_length_exceeded"
