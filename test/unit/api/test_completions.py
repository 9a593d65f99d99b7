"""POST /v1/completions as OpenAI clients see it."""

from __future__ import annotations

from typing import Any

import pytest
from support.fake_engine import FakeServer
from support.http_calls import events


@pytest.fixture
def server() -> FakeServer:
    return FakeServer()


def complete(server: FakeServer, **fields: Any) -> Any:
    reply = server.post("/v1/completions", {"prompt": "hi", "max_tokens": 3, **fields})
    assert reply.status_code == 200, reply.text
    return reply.json()


def stream(server: FakeServer, **fields: Any) -> list[Any]:
    body = {"prompt": "hi", "max_tokens": 3, "stream": True, **fields}
    reply = server.post("/v1/completions", body)
    assert reply.status_code == 200, reply.text
    assert reply.headers["content-type"].startswith("text/event-stream")
    return events(reply.text)


def test_the_answer_has_openais_shape(server: FakeServer) -> None:
    server.engine.cached_tokens = 1

    reply = complete(server, model="tiny-model", user="me", metadata={"a": 1}, unknown=3)

    assert reply["id"].startswith("cmpl-")
    assert reply["object"] == "text_completion"
    assert reply["model"] == "some/tiny-model"
    assert reply["choices"] == [
        {
            "index": 0,
            "text": "abc",
            "logprobs": None,
            "finish_reason": "length",
            "matched_stop": None,
        }
    ]
    assert reply["usage"] == {
        "prompt_tokens": 2,
        "completion_tokens": 3,
        "total_tokens": 5,
        "prompt_tokens_details": {"cached_tokens": 1},
    }


@pytest.mark.parametrize(
    ("prompt", "num_tokens"),
    [("hi", [2]), (["hi", "you"], [2, 3]), ([1, 2, 3], [3]), ([[1], [2, 3]], [1, 2])],
)
def test_every_form_of_prompt_is_taken(
    server: FakeServer, prompt: Any, num_tokens: list[int]
) -> None:
    reply = complete(server, prompt=prompt)

    assert [one["index"] for one in reply["choices"]] == list(range(len(num_tokens)))
    assert [len(one.input_ids) for one in server.engine.requests] == num_tokens
    assert reply["usage"]["prompt_tokens"] == sum(num_tokens)


def test_samples_of_a_prompt_stand_together_and_its_tokens_count_once(server: FakeServer) -> None:
    reply = complete(server, prompt=["a", "bb"], n=2)

    assert [one["index"] for one in reply["choices"]] == [0, 1, 2, 3]
    assert [len(one.input_ids) for one in server.engine.requests] == [1, 1, 2, 2]
    assert reply["usage"]["prompt_tokens"] == 3
    assert reply["usage"]["completion_tokens"] == 12


def test_echo_repeats_the_prompt_with_its_logprobs(server: FakeServer) -> None:
    choice = complete(server, prompt=[104, 105], max_tokens=1, echo=True, logprobs=1)["choices"][0]

    assert choice["text"] == "hia"
    assert choice["logprobs"] == {
        "tokens": ["h", "i", "a"],
        "token_logprobs": [None, -0.5, -0.5],
        "top_logprobs": [None, {"i": -0.5}, {"a": -0.5}],
        "text_offset": [0, 1, 2],
    }


def test_scoring_needs_no_new_token(server: FakeServer) -> None:
    choice = complete(server, max_tokens=0, echo=True, logprobs=1)["choices"][0]

    assert choice["text"] == "hi"
    assert choice["logprobs"]["tokens"] == ["h", "i"]


def test_logprobs_of_zero_still_gives_the_chosen_token(server: FakeServer) -> None:
    logprobs = complete(server, max_tokens=1, logprobs=0)["choices"][0]["logprobs"]

    assert logprobs["token_logprobs"] == [-0.5]
    assert logprobs["top_logprobs"] == [{"a": -0.5}]


def test_a_part_of_a_character_is_named_by_its_bytes(server: FakeServer) -> None:
    server.engine.output = lambda request: list("é".encode())

    choice = complete(server, logprobs=1)["choices"][0]

    assert choice["text"] == "é"
    assert choice["logprobs"]["tokens"] == ["bytes:\\xc3", "bytes:\\xa9"]


def test_default_length_is_sixteen(server: FakeServer) -> None:
    complete(server, max_tokens=None)

    assert server.engine.requests[0].sampling.max_new_tokens == 16


def test_a_stream_equals_the_whole(server: FakeServer) -> None:
    seen = stream(server)

    assert seen[-1] == "[DONE]"
    choices = [one["choices"][0] for one in seen[:-1]]
    assert "".join(one["text"] for one in choices) == "abc"
    assert [one["finish_reason"] for one in choices] == [None, None, "length"]
    assert all("usage" not in one for one in seen[:-1])


def test_a_stream_shows_usage_once_at_the_end_if_asked(server: FakeServer) -> None:
    seen = stream(server, stream_options={"include_usage": True}, prompt=["a", "b"], n=2)

    *chunks, last, done = seen
    assert done == "[DONE]"
    assert last["choices"] == []
    assert last["usage"]["total_tokens"] == 2 + 12
    assert all(one["usage"] is None for one in chunks)


def test_continuous_usage_counts_along(server: FakeServer) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}

    seen = stream(server, stream_options=options)

    counts = [one["usage"]["completion_tokens"] for one in seen[:-1]]
    assert counts == [1, 2, 3, 3]


def test_streamed_logprobs_are_never_empty_and_complete(server: FakeServer) -> None:
    server.engine.output = lambda request: list("€é".encode())

    seen = stream(server, logprobs=2, echo=True)

    logprobs = [one["choices"][0]["logprobs"] for one in seen[:-1]]
    tokens = [token for one in logprobs if one is not None for token in one["tokens"]]
    assert len(tokens) == 2 + 5
    assert all(one is None or one["tokens"] for one in logprobs)
    offsets = [offset for one in logprobs if one is not None for offset in one["text_offset"]]
    assert offsets == sorted(offsets)
    assert "".join(one["choices"][0]["text"] for one in seen[:-1]) == "hi€é"


def test_each_choice_of_a_stream_finishes_once_and_last(server: FakeServer) -> None:
    finished = []
    for one in stream(server, prompt=["a", "b"], n=2)[:-1]:
        choice = one["choices"][0]
        assert choice["index"] not in finished
        if choice["finish_reason"]:
            finished.append(choice["index"])

    assert sorted(finished) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": None}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [""]}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": [1.5]}, "prompt"),
        ({"prompt": ["a", 3]}, "prompt"),
        ({"prompt": [True]}, "prompt"),
        ({"prompt": {"a": 1}}, "prompt"),
        ({"max_tokens": "3"}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"max_tokens": 2, "min_tokens": 3}, "min_tokens"),
        ({"seed": 2**64}, "seed"),
        ({"n": 100000}, "n"),
        ({"n": 0}, "n"),
        ({"logprobs": -1}, "logprobs"),
        ({"logprobs": 1000}, "logprobs"),
        ({"temperature": True}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"best_of": 5}, "best_of"),
        ({"suffix": "end"}, "suffix"),
        ({"stop": ["x"] * 20000}, "stop"),
        ({"stop": ["y" * 200000]}, "stop"),
        ({"logit_bias": {str(i): 1 for i in range(40000)}}, "logit_bias"),
        ({"stream_options": 5}, "stream_options"),
        ({"regex": 5}, "regex"),
        ({"guided_json": []}, "guided_json"),
        ({"guided_json": {"type": "thing"}}, "guided_json"),
        ({"guided_choice": ["a"], "regex": "a"}, "guided_choice"),
        ({"structured_outputs": {"jason": {}}}, "structured_outputs"),
        ({"structured_outputs": {"choice": [1]}}, "structured_outputs"),
        ({"response_format": {"type": "json"}}, "response_format"),
    ],
)
def test_mistakes_are_named_as_the_client_named_them(
    server: FakeServer, fields: dict[str, Any], param: str
) -> None:
    reply = server.post("/v1/completions", {"prompt": "hi", **fields})

    assert reply.status_code == 400, reply.text
    error = reply.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["param"].split(".")[0] == param, error
    assert "max_new_tokens" not in error["message"]
    assert server.engine.requests == []


def test_best_of_as_many_as_asked_for_is_no_choice_and_taken(server: FakeServer) -> None:
    assert len(complete(server, n=2, best_of=2)["choices"]) == 2


def test_a_taken_request_id_is_the_answers_id(server: FakeServer) -> None:
    reply = server.post("/v1/completions", {"prompt": "hi", "rid": "my-id"})

    assert reply.json()["id"] == "my-id"
    assert reply.headers["x-request-id"] == "my-id"
    assert server.engine.requests[0].rid == "my-id"
