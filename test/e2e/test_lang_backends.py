"""Tools, pins, several samples and OpenAI's API: the same program on each backend that can."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from support.api_client import ApiClient
from support.server import Server

from runtime import (
    Engine,
    OpenAIBackend,
    ProgramState,
    RuntimeEndpoint,
    assistant,
    function,
    gen,
    select,
    tool_result,
    user,
)
from runtime.lang.errors import BackendError, Unsupported
from runtime.srt.errors import BadRequest

RULES = "These are the rules of the house, in the order in which they were made. " * 3

PET = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "pattern": "^[A-Za-z]{1,8}$"},
        "legs": {"type": "integer", "minimum": 0, "maximum": 100},
    },
    "required": ["name", "legs"],
    "additionalProperties": False,
}


def add(x: int, y: int) -> int:
    """Add two numbers."""
    return x + y


@function
def agent(s: ProgramState) -> None:
    s += user("What is 17 plus 23? Use the tool.")
    s += assistant(gen("step", tools=[add], tool_choice="required", max_tokens=60))
    for call in s.tool_calls("step"):
        s += tool_result(call, call.run())
    s += assistant(gen("answer", max_tokens=10))


@function
def prefilled(s: ProgramState) -> None:
    s += user("Name a colour.")
    s += assistant(
        "The colour is" + gen("c", max_tokens=5, return_logprob=True, top_logprobs_num=2)
    )


@function
def capital(s: ProgramState, method: str = "token_length_normalized") -> None:
    s += "The capital of France is"
    s += select("city", [" Rome", " Paris", " a frog"], choices_method=method)
    s += ". And" + gen("more", max_tokens=4, return_logprob=True)


@function
def pet(s: ProgramState, whitespace: str) -> None:
    s += user("Rex is a dog. Describe him as JSON.")
    s += assistant(gen("pet", json_schema=PET, json_whitespace=whitespace, max_tokens=60))


@function
def samples(s: ProgramState) -> None:
    s += "Once" + gen("a", max_tokens=6, n=3, temperature=1, seed=3)


@function
def ask(s: ProgramState, question: str) -> None:
    s += RULES + question + gen("a", max_tokens=2)


@pytest.fixture(scope="module")
def endpoint(server: Server) -> Iterator[RuntimeEndpoint]:
    with RuntimeEndpoint(server.base_url) as backend:
        yield backend


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine(max_total_tokens=8192, threads=1, skip_server_warmup=True) as running:
        yield running


@pytest.fixture
def chat(server: Server) -> Iterator[OpenAIBackend]:
    url = server.base_url + "/v1"
    backend = OpenAIBackend("default", base_url=url, api_key="none", extra_fields=True)
    yield backend
    backend.close()


@pytest.fixture
def completions(server: Server) -> Iterator[OpenAIBackend]:
    url = server.base_url + "/v1"
    backend = OpenAIBackend(
        "default", base_url=url, api_key="none", api="completions", echo_logprobs=True
    )
    yield backend
    backend.close()


def test_tools_are_called_on_every_backend_that_takes_messages(
    endpoint: RuntimeEndpoint, engine: Engine, chat: OpenAIBackend
) -> None:
    backends: list[Any] = [endpoint, engine, chat]

    states = [agent.run(backend=backend, temperature=0) for backend in backends]

    for state in states:
        (call,) = state.tool_calls("step")
        assert (call.name, call.arguments) == ("add", {"x": 17, "y": 23})
        assert state.messages()[2]["content"] == "40"
        assert state.get_meta_info("step")["finish_reason"] == {"type": "tool_calls"}
        assert state["answer"] == states[0]["answer"]


def test_json_has_no_whitespace_where_a_gen_asks_for_none(
    endpoint: RuntimeEndpoint, engine: Engine, chat: OpenAIBackend
) -> None:
    backends: list[Any] = [endpoint, engine, chat]

    states = [pet.run("compact", backend=one, temperature=0) for one in backends]
    texts = [one.messages()[1]["content"] for one in states]

    assert len(set(texts)) == 1
    assert re.fullmatch(r'\{"name":"[^"]{1,8}","legs":\d{1,3}\}', texts[0])
    loose = pet.run("unbounded", backend=endpoint, temperature=0).messages()[1]["content"]
    assert json.loads(loose).keys() == json.loads(texts[0]).keys()


def test_an_engine_answers_conversations_whole_and_names_what_it_does_not_know(
    engine: Engine, api: ApiClient
) -> None:
    messages = [{"role": "user", "content": "Name a colour."}]
    body = {"messages": messages, "temperature": 0, "max_tokens": 5}

    answer = asyncio.run(engine.async_chat(messages, temperature=0, max_tokens=5))

    expected = api.post("/v1/chat/completions", body).json()
    assert answer["choices"] == expected["choices"]
    with pytest.raises(BadRequest, match="leave stream out"):
        asyncio.run(engine.async_chat(messages, stream=True))
    with pytest.raises(BadRequest, match="max_token"):
        asyncio.run(engine.async_chat(messages, max_token=5))


def test_a_message_that_is_begun_is_gone_on_with_by_the_openai_api(
    endpoint: RuntimeEndpoint, chat: OpenAIBackend
) -> None:
    ours = prefilled.run(backend=endpoint, temperature=0)
    theirs = prefilled.run(backend=chat, temperature=0)
    streamed = prefilled.run(backend=chat, temperature=0, stream=True)

    assert theirs.messages() == ours.messages()
    assert "".join(streamed.text_iter("c")) == ours["c"]
    values = [one[0] for one in ours.get_meta_info("c")["output_token_logprobs"]]
    for state in (theirs, streamed):
        meta = state.get_meta_info("c")
        # Equal but for other batches and chunks of bfloat16 sums.
        assert [one[0] for one in meta["output_token_logprobs"]] == pytest.approx(values, abs=0.1)
        assert "".join(one[2] for one in meta["output_token_logprobs"]) == ours["c"]
        assert all(len(one) == 2 for one in meta["output_top_logprobs"])


@pytest.mark.parametrize("method", ["token_length_normalized", "greedy_token_selection"])
def test_a_select_is_scored_by_echoed_completions(
    endpoint: RuntimeEndpoint, completions: OpenAIBackend, method: str
) -> None:
    ours = capital.run(method, backend=endpoint, temperature=0)
    theirs = capital.run(method, backend=completions, temperature=0)

    assert theirs.text() == ours.text()
    assert theirs["city"] == " Paris"
    name = "normalized_prompt_logprobs"
    # As above.
    assert theirs.get_meta_info("city")[name] == pytest.approx(
        ours.get_meta_info("city")[name], abs=0.1
    )
    assert [one[1] for one in theirs.get_meta_info("city")["input_token_logprobs"][2]] == [
        " a",
        " frog",
    ]


def test_what_openais_api_cannot_do_is_refused_by_name_before_any_call(server: Server) -> None:
    # Nobody listens there: a call would be another error.
    plain = OpenAIBackend("m", base_url="http://127.0.0.1:9/v1", api_key="x", api="completions")
    echo = OpenAIBackend(
        "m", base_url="http://127.0.0.1:9/v1", api_key="x", api="completions", echo_logprobs=True
    )
    chat = OpenAIBackend("m", base_url="http://127.0.0.1:9/v1", api_key="x")
    relative = capital.bind(method="unconditional_likelihood_normalized")
    cases: list[tuple[Any, Any, str]] = [
        (capital, plain, "echo_logprobs=True"),
        (relative, echo, "unconditional_likelihood_normalized"),
        (agent, plain, "plain text only"),
        (prefilled, chat, "whole messages of the assistant only"),
        (samples.bind(), chat, "takes messages only"),
    ]
    try:
        for program, backend, words in cases:
            with pytest.raises(Unsupported, match=words):
                program.run(backend=backend)
        with pytest.raises(Unsupported, match="cannot pin"):
            ask.run("?", backend=plain, pin_prefix_seconds=5)
    finally:
        for one in (plain, echo, chat):
            one.close()


def test_samples_are_streamed_side_by_side_on_every_backend(
    endpoint: RuntimeEndpoint, engine: Engine, completions: OpenAIBackend
) -> None:
    backends: list[Any] = [endpoint, engine, completions]
    whole = samples.run(backend=endpoint)

    for backend in backends:
        state = samples.run(backend=backend, stream=True)
        pieces = [list(state.text_iter("a", sample=i)) for i in range(3)]
        assert ["".join(one) for one in pieces] == state["a"] == whole["a"]
        assert all(len(one) > 1 for one in pieces)
        assert state.text() == "Once" + state["a"][0]


def test_a_run_and_a_batch_pin_their_prefix(
    endpoint: RuntimeEndpoint, engine: Engine, api: ApiClient
) -> None:
    api.flush()
    ask.run("Why?", backend=endpoint, pin_prefix_seconds=60)
    after_run = api.kv()["pinned"]
    items = [(f"{word}?",) for word in ("Who", "How", "When")]
    ask.run_batch(items, backend=endpoint, pin_prefix_seconds=60)
    after_batch = api.kv()["pinned"]
    ask.run("Why?", backend=engine, pin_prefix_seconds=60)

    assert after_run >= len(api.tokenize(RULES.strip()))
    # What the batch shares is part of what the run has pinned.
    assert after_batch == after_run
    assert engine.server_info()["kv"]["pinned"] >= len(api.tokenize(RULES.strip()))
    api.flush()


def test_a_pin_that_the_server_refuses_ends_the_run_with_its_reason(
    endpoint: RuntimeEndpoint,
) -> None:
    with pytest.raises(BackendError, match="ttl_seconds") as caught:
        ask.run("Why?", backend=endpoint, pin_prefix_seconds=1e12)

    assert caught.value.status_code == 400


def test_a_trace_gives_the_prefix_that_a_pin_takes(
    endpoint: RuntimeEndpoint, api: ApiClient
) -> None:
    pin = endpoint.pin_prefix(ask.trace().prefix_text, ttl_seconds=60)
    before = api.counter("cached_prompt_tokens")
    ask.run("Why?", backend=endpoint)
    cached = api.counter("cached_prompt_tokens") - before
    endpoint.unpin_prefix(pin["pin_id"])

    assert cached >= pin["num_tokens"]
