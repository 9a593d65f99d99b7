"""A server that is told to use xgrammar: what it serves, and what it refuses by name."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from support.api_client import ApiClient
from support.persons import PERSON, PROMPT, generate, is_person
from support.server import Server, start_server


@pytest.fixture(scope="module")
def xgrammar_server() -> Iterator[Server]:
    with start_server("--grammar-backend", "xgrammar", "--skip-server-warmup") as server:
        yield server


@pytest.fixture
def xgrammar_api(xgrammar_server: Server) -> Iterator[ApiClient]:
    with ApiClient(xgrammar_server.base_url) as client:
        yield client


def post(api: ApiClient, **sampling: Any) -> httpx.Response:
    sampling = {"temperature": 0, "max_new_tokens": 120, **sampling}
    return api.post("/generate", {"text": PROMPT, "sampling_params": sampling})


@pytest.mark.parametrize("temperature", [0, 1.5])
def test_answers_satisfy_their_schema(xgrammar_api: ApiClient, temperature: float) -> None:
    for seed in range(3):
        answer = generate(
            xgrammar_api,
            json_schema=json.dumps(PERSON),
            temperature=temperature,
            sampling_seed=seed,
        )
        assert is_person(answer["text"]), answer["text"]
        assert answer["meta_info"]["finish_reason"]["type"] == "stop"


@pytest.mark.parametrize(
    ("field", "value", "pattern"),
    [
        ("regex", "[0-9]{3}-[0-9]{4}", r"[0-9]{3}-[0-9]{4}"),
        ("choice", ["red", 'gr"e\nen', "blueish"], r'red|gr"e\nen|blueish'),
        ("ebnf", 'root ::= "ab" [0-9]{2,4} "c"', r"ab[0-9]{2,4}c"),
    ],
)
def test_other_grammars(xgrammar_api: ApiClient, field: str, value: Any, pattern: str) -> None:
    for temperature in (0, 1.5):
        answer = generate(xgrammar_api, **{field: value}, temperature=temperature)
        assert re.fullmatch(pattern, answer["text"]), answer["text"]


def test_stream_gives_the_same_tokens(xgrammar_api: ApiClient) -> None:
    whole = generate(xgrammar_api, json_schema=json.dumps(PERSON))
    sampling = {"temperature": 0, "max_new_tokens": 120, "json_schema": json.dumps(PERSON)}
    body = {"text": PROMPT, "sampling_params": sampling, "stream": True}
    last = xgrammar_api.events("/generate", body)[-1]
    assert last["text"] == whole["text"]
    assert last["output_ids"] == whole["output_ids"]


def test_forced_tokens_are_jumped_over_and_change_nothing(xgrammar_api: ApiClient) -> None:
    metrics = httpx.get(xgrammar_api.base_url + "/metrics").text
    found = re.search(r"jump_forward_tokens_total\S* ([0-9.]+)", metrics)
    assert found is not None and float(found[1]) > 0
    expected = generate(xgrammar_api, json_schema=json.dumps(PERSON))
    flags = ("--grammar-backend", "xgrammar", "--disable-jump-forward", "--skip-server-warmup")
    with start_server(*flags) as other, ApiClient(other.base_url) as api:
        assert generate(api, json_schema=json.dumps(PERSON))["output_ids"] == expected["output_ids"]


def test_document_is_finished_within_its_budget(xgrammar_api: ApiClient) -> None:
    for max_new_tokens in (24, 31):
        answer = generate(
            xgrammar_api, json_schema=json.dumps(PERSON), max_new_tokens=max_new_tokens
        )
        assert is_person(answer["text"]), answer["text"]
        assert answer["meta_info"]["completion_tokens"] <= max_new_tokens


@pytest.mark.parametrize(
    ("sampling", "words"),
    [
        ({"json_schema": '{"type": "object", "dependentRequired": {"a": ["b"]}}'}, "dependentReq"),
        ({"json_schema": '{"type": "string", "pattern": "^a"}'}, "pattern"),
        ({"regex": "(?=a)b"}, "(?="),
        ({"regex": "a$b"}, "$ at character 2"),
        ({"regex": "(((("}, "parenthesis"),
        ({"ebnf": 'root ::= "a" root'}, "can never end"),
        ({"structural_tag": '{"type": "structural_tag", "format": {"type": "any_text"}}'}, "auto"),
    ],
)
def test_what_it_cannot_enforce_is_refused_by_name(
    xgrammar_api: ApiClient, sampling: dict[str, Any], words: str
) -> None:
    reply = post(xgrammar_api, **sampling)
    assert reply.status_code == 400, reply.text
    error = reply.json()["error"]
    assert error["param"] == next(iter(sampling))
    assert words in error["message"]


def test_required_tools_are_refused_with_the_flag_that_serves_them(xgrammar_api: ApiClient) -> None:
    tool = {"type": "function", "function": {"name": "look", "parameters": PERSON}}
    reply = xgrammar_api.post(
        "/v1/chat/completions",
        {
            "messages": [{"role": "user", "content": "Who?"}],
            "tools": [tool],
            "tool_choice": "required",
        },
    )
    assert reply.status_code == 400, reply.text
    assert reply.json()["error"]["param"] == "tools"
    assert "--grammar-backend auto" in reply.json()["error"]["message"]
