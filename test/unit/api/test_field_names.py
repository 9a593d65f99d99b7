"""A refused field is named as the client sent it, on every route."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.fake_engine import FakeServer

IDS_TOO_LONG = [1] * 600  # the context has 512 tokens

# Name -> values that are refused: by type, by range, by what they hold.
SAMPLING: dict[str, list[Any]] = {
    "temperature": ["hot", -1, True],
    "top_p": ["x", 0, 2],
    "top_k": [1.5, -2],
    "min_p": ["x", 2],
    "frequency_penalty": [[], 3],
    "presence_penalty": [[], 3],
    "repetition_penalty": ["x", 0],
    "n": ["2", 0, 1000],
    "stop": [5, [""], ["a"] * 33],
    "stop_regex": [5, "(", "x*"],
    "stop_token_ids": ["1", [-1], [999], [1] * 2000],
    "logit_bias": [[], {"a": 1}, {"999": 1}, {"1": 1000}, {"1": "x"}],
    "ignore_eos": ["x"],
    "skip_special_tokens": ["x"],
    "spaces_between_special_tokens": ["x"],
    "no_stop_trim": ["x"],
    "stream_interval": ["x", 0],
    "seed": ["x", 2**63],
    "sampling_seed": ["x", 2**63],
}
COMMON: dict[str, list[Any]] = {
    "rid": [5, "x" * 600, "a\nb"],
    "cache_salt": [5, "x" * 600, "a\nb"],
    "extra_key": [5, "x" * 600, "a\nb"],
    "priority": ["x", 2**40],
}
STRUCTURED: dict[str, list[Any]] = {
    "regex": [5],
    "ebnf": [["a"]],
    "json_schema": [5, "{", {"type": "thing"}],
    "structural_tag": [5, "{"],
}
OPENAI: dict[str, list[Any]] = {
    **SAMPLING,
    **COMMON,
    **STRUCTURED,
    "max_tokens": ["x", -1, 600],
    "min_tokens": ["x", -1],
    "stream": ["x"],
    "stream_options": ["x"],
    "response_format": [{"type": "xml"}, 5],
    "guided_json": [[1], {"type": "thing"}],
    "lora_path": ["x"],
    "session_params": [{"id": 1}],
    "custom_logit_processor": ["x"],
    "return_hidden_states": [True],
    "require_reasoning": [True],
    "max_thinking_tokens": [5],
}
ROUTES: dict[str, tuple[dict[str, Any], dict[str, list[Any]]]] = {
    "/generate": (
        {"text": "hi", "return_logprob": True},
        {
            **COMMON,
            "text": [5, "", "a" * 600, ["a", ""], [1], ["a"] * 5000],
            "sampling_params": [5, [{}, {}]],
            "stream": ["x"],
            "return_logprob": ["x"],
            "logprob_start_len": ["x", -2, 99],
            "top_logprobs_num": ["x", -1, 1000],
            "token_ids_logprob": ["x", [-1], [999], [1] * 2000],
            "return_text_in_logprobs": ["x"],
            "return_prompt_token_ids": ["x"],
            "input_embeds": [[1]],
            "image_data": ["x"],
            "video_data": ["x"],
            "audio_data": ["x"],
            "lora_path": ["x"],
            "session_params": [{"id": 1}],
            "session_id": ["x"],
            "custom_logit_processor": ["x"],
            "return_hidden_states": [True],
            "require_reasoning": [True],
            "max_thinking_tokens": [5],
        },
    ),
    "/generate with ids": (
        {},
        {"input_ids": [5, "x", [], [[]], [-1], [999], [1.5], [[1], "a"], IDS_TOO_LONG]},
    ),
    "/v1/completions": (
        {"prompt": "hi"},
        {
            **OPENAI,
            "prompt": [5, "", "a" * 600, ["a", ""], [999], [-1], IDS_TOO_LONG],
            "logprobs": ["x", -1, 1000],
            "echo": ["x"],
            "best_of": ["x", 5],
            "suffix": ["x", 5],
        },
    ),
    "/v1/chat/completions": (
        {"messages": [{"role": "user", "content": "hi"}], "logprobs": True},
        {
            **OPENAI,
            "messages": [
                5,
                [],
                [{"role": "user", "content": "a" * 600}],
                [{"role": 5, "content": ""}],
            ],
            "max_completion_tokens": ["x", -1, 600],
            "logprobs": ["x"],
            "top_logprobs": ["x", -1, 1000],
            "add_generation_prompt": ["x"],
            "continue_final_message": ["x", True],
            "chat_template_kwargs": [5],
            "tools": [[{"type": "function"}]],
            "tool_choice": ["required"],
            "functions": [[{"name": "f"}]],
            "reasoning_effort": ["x", 3, ["high"]],
            "modalities": [["audio"]],
            "audio": [{"voice": "x"}],
        },
    ),
    "/tokenize": (
        {},
        {
            "prompt": [5, [1], ["a", 1]],
            "text": [5, [1], ["a", 1]],
            "messages": [5, [], [{"role": 5}]],
            "add_special_tokens": ["x"],
            "chat_template_kwargs": [5],
        },
    ),
    "/detokenize": (
        {},
        {"tokens": [None, "x", [999], [-1], [1.5], [[1], "a"]], "skip_special_tokens": ["x"]},
    ),
    "/abort_request": (
        {},
        {"rid": [5, ""], "abort_all": ["x"], "abort_message": [5]},
    ),
}
CASES = [
    (route, name, value)
    for route, (_, fields) in ROUTES.items()
    for name, values in fields.items()
    for value in values
]
NESTED = {
    **SAMPLING,
    **STRUCTURED,
    "max_new_tokens": ["x", -1, 600],
    "min_new_tokens": ["x", -1],
    "beam_width": [2],
}
NESTED_CASES = [(name, value) for name, values in NESTED.items() for value in values]


def _case_id(case: tuple[Any, ...]) -> str:
    return " ".join(f"{part!a}"[:24] for part in case)


@pytest.mark.parametrize("case", CASES, ids=_case_id)
def test_each_route_names_the_field_that_its_client_sent(case: tuple[str, str, Any]) -> None:
    route, name, value = case
    body = {**ROUTES[route][0], name: value}

    _check_named(route.split()[0], body, name)


@pytest.mark.parametrize("case", NESTED_CASES, ids=_case_id)
def test_the_native_route_names_fields_of_sampling_params(case: tuple[str, Any]) -> None:
    name, value = case

    _check_named("/generate", {"text": "hi", "sampling_params": {name: value}}, name)


def _check_named(path: str, body: dict[str, Any], name: str) -> None:
    server = FakeServer()
    reply = server.post(path, body)
    # Large bodies are read in another way.
    large = server.call("POST", path, content=json.dumps(body) + " " * 100_000)

    assert (large.status_code, large.text) == (reply.status_code, reply.text)
    assert reply.status_code == 400, reply.text[:300]
    error = reply.json()["error"]
    assert error["param"] is not None, error
    assert name in error["param"].split("."), error
    assert name in error["message"], error
