"""Answers that follow a grammar, over HTTP with the bundled model."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.api_client import ApiClient
from support.persons import PERSON, PROMPT, generate, is_person
from support.server import Server, start_server


@pytest.mark.parametrize("temperature", [0, 1.5])
def test_answer_satisfies_its_schema(api: ApiClient, temperature: float) -> None:
    for seed in range(4):
        answer = generate(
            api, json_schema=json.dumps(PERSON), temperature=temperature, sampling_seed=seed
        )
        assert is_person(answer["text"]), answer["text"]
        assert answer["meta_info"]["finish_reason"]["type"] == "stop"


@pytest.mark.parametrize(
    ("field", "value", "pattern"),
    [
        ("regex", "[0-9]{3}-[0-9]{4}", r"[0-9]{3}-[0-9]{4}"),
        ("choice", ["red", "green", "blueish"], r"red|green|blueish"),
        ("ebnf", 'root ::= "ab" [0-9]{2,4} "c"', r"ab[0-9]{2,4}c"),
    ],
)
def test_other_grammars(api: ApiClient, field: str, value: Any, pattern: str) -> None:
    for temperature in (0, 1.5):
        answer = generate(api, **{field: value}, temperature=temperature)
        assert re.fullmatch(pattern, answer["text"]), answer["text"]


@pytest.mark.parametrize(
    "body",
    [
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "person", "schema": PERSON, "strict": True},
            }
        },
        {"structured_outputs": {"json": PERSON}},
        {"guided_json": PERSON},
        {"json_schema": json.dumps(PERSON)},
    ],
)
def test_openai_routes_take_a_schema_under_any_of_its_names(
    api: ApiClient, body: dict[str, Any]
) -> None:
    question = {"messages": [{"role": "user", "content": PROMPT}], "temperature": 0}

    chat = api.post("/v1/chat/completions", {**question, "max_tokens": 120, **body})
    completion = api.post(
        "/v1/completions", {"prompt": PROMPT, "max_tokens": 120, "temperature": 0, **body}
    )

    assert is_person(chat.json()["choices"][0]["message"]["content"]), chat.text
    assert is_person(completion.json()["choices"][0]["text"]), completion.text


def test_what_a_loose_schema_leaves_out_is_told_by_every_route(api: ApiClient) -> None:
    schema = {"type": "string", "format": "phone", "maxLength": 10}
    loose = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema, "strict": False}}
    asked = {"max_tokens": 30, "temperature": 0, "response_format": loose}
    chat = {**asked, "messages": [{"role": "user", "content": PROMPT}]}

    told = [
        api.ok("/v1/chat/completions", chat)["choices"],
        api.ok("/v1/completions", {**asked, "prompt": PROMPT})["choices"],
        [
            one
            for event in api.events("/v1/chat/completions", {**chat, "stream": True})
            for one in event["choices"]
            if one["finish_reason"]
        ],
    ]

    for choices in told:
        assert [one["dropped_schema_keywords"] for one in choices] == [["/format"]]


def test_json_object_is_an_object(api: ApiClient) -> None:
    body = {"messages": [{"role": "user", "content": PROMPT}], "temperature": 0, "max_tokens": 60}
    reply = api.post(
        "/v1/chat/completions", {**body, "response_format": {"type": "json_object"}}
    ).json()
    assert isinstance(json.loads(reply["choices"][0]["message"]["content"]), dict)


@pytest.mark.parametrize("max_new_tokens", [16, 24, 31, 40])
def test_document_is_finished_within_its_budget(api: ApiClient, max_new_tokens: int) -> None:
    schema = {
        "type": "object",
        "properties": {"story": {"type": "string"}, "end": {"type": "boolean"}},
        "required": ["story", "end"],
        "additionalProperties": False,
    }
    answer = generate(api, json_schema=json.dumps(schema), max_new_tokens=max_new_tokens)
    assert set(json.loads(answer["text"])) == {"story", "end"}
    assert answer["meta_info"]["finish_reason"]["type"] == "stop"
    assert answer["meta_info"]["completion_tokens"] <= max_new_tokens


@pytest.mark.parametrize("jumps", [True, False])
@pytest.mark.parametrize(
    ("fields", "text", "num_tokens"),
    [
        ({"choice": ["red"]}, "red", 1),
        ({"json_schema": '{"const": true}'}, "true", 1),
        ({"ebnf": 'root ::= "red"'}, "red", 1),
        (
            {
                "json_schema": json.dumps(
                    {
                        "properties": {
                            "ok": {"type": "boolean"},
                            "name": {"type": "string"},
                            "k": {"enum": ["aa", "bb"]},
                        },
                        "required": ["ok", "name", "k"],
                        "additionalProperties": False,
                        "type": "object",
                    }
                )
            },
            None,
            12,
        ),
    ],
    ids=["choice", "const", "ebnf", "object"],
)
def test_a_budget_of_the_shortest_text_alone_is_enough(
    api: ApiClient, fields: dict[str, Any], text: str | None, num_tokens: int, jumps: bool
) -> None:
    # Log-probabilities make the last token a drawn one.
    asked = {} if jumps else {"return_logprob": True}
    sampling = {"temperature": 1, "max_new_tokens": num_tokens, **fields}
    reply = api.post("/generate", {"text": PROMPT, "sampling_params": sampling, **asked}).json()

    assert reply["text"] == text if text is not None else json.loads(reply["text"])
    assert reply["meta_info"]["finish_reason"] == {"type": "stop", "matched": None}
    assert reply["meta_info"]["completion_tokens"] == num_tokens


def test_a_number_that_the_budget_cuts_may_have_had_more_digits(api: ApiClient) -> None:
    answer = generate(api, json_schema='{"type": "integer"}', max_new_tokens=1)
    assert answer["meta_info"]["finish_reason"]["type"] == "length"


def test_budget_too_small_for_any_document_ends_with_length(api: ApiClient) -> None:
    answer = generate(api, json_schema=json.dumps(PERSON), max_new_tokens=5)
    assert answer["meta_info"]["finish_reason"]["type"] == "length"


def test_samples_of_one_request_have_a_place_in_the_grammar_each(api: ApiClient) -> None:
    sampling = {
        "temperature": 1.2,
        "max_new_tokens": 120,
        "n": 4,
        "json_schema": json.dumps(PERSON),
    }
    reply = api.post("/generate", {"text": PROMPT, "sampling_params": sampling})
    texts = [one["text"] for one in reply.json()]
    assert len(set(texts)) > 1
    assert all(map(is_person, texts)), texts


def test_stream_gives_the_same_text(api: ApiClient) -> None:
    sampling = {"temperature": 0, "max_new_tokens": 120, "json_schema": json.dumps(PERSON)}
    whole = api.post("/generate", {"text": PROMPT, "sampling_params": sampling}).json()
    body = {"text": PROMPT, "sampling_params": sampling, "stream": True}
    last = api.events("/generate", body)[-1]
    assert last["text"] == whole["text"]
    assert last["output_ids"] == whole["output_ids"]


def test_logprobs_are_given_for_every_token_and_of_the_raw_distribution(api: ApiClient) -> None:
    body = {"text": PROMPT, "return_logprob": True, "top_logprobs_num": 1}
    sampling = {"temperature": 0, "max_new_tokens": 120, "json_schema": json.dumps(PERSON)}
    answer = api.post("/generate", {**body, "sampling_params": sampling}).json()
    plain = api.post(
        "/generate", {**body, "sampling_params": {"temperature": 0, "max_new_tokens": 1}}
    ).json()

    triples = answer["meta_info"]["output_token_logprobs"]
    assert [one[1] for one in triples] == answer["output_ids"]
    assert answer["output_ids"] == generate(api, json_schema=json.dumps(PERSON))["output_ids"]
    first = answer["meta_info"]["output_top_logprobs"][0][0]
    assert first == plain["meta_info"]["output_top_logprobs"][0][0]


@pytest.mark.parametrize(
    ("sampling", "param", "words"),
    [
        ({"regex": "(((("}, "regex", ""),
        ({"json_schema": '{"type": "objekt"}'}, "json_schema", "type"),
        ({"json_schema": "{"}, "json_schema", ""),
        ({"ebnf": "no rules here"}, "ebnf", ""),
        ({"choice": [1, 2]}, "choice", "strings"),
        ({"choice": ["a"], "regex": "b"}, "choice", "both"),
        ({"regex": "ab(c"}, "regex", "unclosed group"),
        ({"regex": "[^\\s\\S]"}, "regex", "no text satisfies"),
    ],
)
def test_bad_grammar_is_refused_by_name(
    api: ApiClient, sampling: dict[str, Any], param: str, words: str
) -> None:
    reply = api.post("/generate", {"text": PROMPT, "sampling_params": sampling})
    assert reply.status_code == 400, reply.text
    error = reply.json()["error"]
    assert error["param"] == param
    assert words in error["message"]


def test_grammar_that_breaks_off_in_the_middle_is_refused_before_it_starts(api: ApiClient) -> None:
    mail = {"type": "string", "format": "email", "not": {"pattern": "a{3}"}}
    schema = {"type": "object", "properties": {"mail": mail}, "required": ["mail"]}
    body = {"text": PROMPT, "sampling_params": {"json_schema": json.dumps(schema)}, "stream": True}

    reply = api.post("/generate", body)

    assert reply.status_code == 400, reply.text
    error = reply.json()["error"]
    assert error["param"] == "json_schema"
    assert "cannot be followed after the output" in error["message"]
    assert "mail" in error["message"]


@pytest.mark.parametrize("pattern", ["x.y", "\\n", "\\t.*\\r"])
def test_string_that_waits_for_something_is_whole_within_a_small_budget(
    api: ApiClient, pattern: str
) -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "string", "pattern": pattern}},
        "required": ["a"],
        "additionalProperties": False,
    }
    for seed in range(3):
        answer = generate(
            api,
            json_schema=json.dumps(schema),
            max_new_tokens=24,
            temperature=1.0,
            sampling_seed=seed,
        )
        assert re.search(pattern, json.loads(answer["text"])["a"])
        assert answer["meta_info"]["finish_reason"]["type"] == "stop"


@pytest.mark.parametrize("is_recursive", [False, True])
def test_thousands_of_alternatives_are_served(api: ApiClient, is_recursive: bool) -> None:
    options = " | ".join(f'"w{i}"' for i in range(20_000))
    ebnf = f'root ::= "(" root ")" | {options}' if is_recursive else f"root ::= {options}"
    answer = generate(api, ebnf=ebnf)
    found = re.fullmatch(r"(\(*)w(\d+)(\)*)", answer["text"])
    assert found is not None and int(found[2]) < 20_000
    assert len(found[1]) == len(found[3])


def test_greedy_output_is_the_same_without_jumps_and_with_overlap(api: ApiClient) -> None:
    before = _num_forced(api.base_url)
    expected = generate(api, json_schema=json.dumps(PERSON))
    assert _num_forced(api.base_url) - before >= 5
    flags = ("--disable-jump-forward", "--overlap-depth", "1", "--skip-server-warmup")
    with start_server(*flags) as other, ApiClient(other.base_url) as client:
        got = generate(client, json_schema=json.dumps(PERSON))
    assert got["output_ids"] == expected["output_ids"]
    with start_server("--overlap-depth", "1", "--skip-server-warmup") as other:
        with ApiClient(other.base_url) as client:
            got = generate(client, json_schema=json.dumps(PERSON))
            assert _num_forced(other.base_url) > 0
    assert got["output_ids"] == expected["output_ids"]


def _num_forced(base_url: str) -> float:
    metrics = httpx.get(base_url + "/metrics").text
    forced = re.search(r"jump_forward_tokens_total\S* ([0-9.]+)", metrics)
    assert forced is not None
    return float(forced[1])


def grammar_processes(server: Server) -> tuple[int, int]:
    """The process that makes grammar workers, and its present worker."""
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            name, _, rest = stat.read_text().rpartition(")")
            if name.endswith("(radix-grammars"):
                parents[int(stat.parent.name)] = int(rest.split()[1])
    forker = next(pid for pid, parent in parents.items() if parent == server.process.pid)
    return forker, next(pid for pid, parent in parents.items() if parent == forker)


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_next_grammar_after_a_workers_end_waits_for_no_new_start(server: Server) -> None:
    with ApiClient(server.base_url) as api:
        generate(api, regex="a{2}")
        forker, worker = grammar_processes(server)

        os.kill(worker, signal.SIGKILL)
        answer = generate(api, regex="a{3}")

        assert answer["text"] == "aaa"
        next_forker, next_worker = grammar_processes(server)
        assert next_forker == forker
        assert next_worker != worker
        api.wait_until_idle()


HOSTILE: list[dict[str, Any]] = [
    {"json_schema": '{"items":' * 3000 + "{}" + "}" * 3000},
    {"json_schema": json.dumps({"enum": [f"value {i}" for i in range(10_000)]})},
    {
        "json_schema": json.dumps(
            {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(20_000)}}
        )
    },
    {"json_schema": '{"$ref": "#"}'},
    {
        "json_schema": '{"$defs":{"a":{"type":"object","properties":{"a":{"$ref":"#/$defs/a"}},'
        '"required":["a"]}},"$ref":"#/$defs/a"}'
    },
    {"regex": "[a-z]{1,500000}"},
    {"regex": "(((a{1,60}){1,60}){1,60})"},
    {"regex": "(a|b)*a(a|b){22}"},
    {"ebnf": "root ::= " + "(" * 60_000},
    {"ebnf": "root ::= r0\n" + "\n".join(f'r{i} ::= "x" | r{i + 1}' for i in range(9_000))},
    {"ebnf": 'root ::= "(" root ")" | "' + "a" * 200_000 + '"'},
    {"json_schema": '{"type": "string", "format": "email", "not": {"pattern": "a{3}"}}'},
    {"regex": "(.*a.{100}){10}"},
]


def test_hostile_grammars_are_answered_at_once_and_harm_nobody(server: Server) -> None:
    gaps: list[float] = []
    done = threading.Event()

    def neighbour() -> None:
        sampling = {"temperature": 0, "max_new_tokens": 2000, "ignore_eos": True}
        body = {"text": PROMPT, "sampling_params": sampling, "stream": True}
        last = None
        with httpx.stream("POST", server.base_url + "/generate", json=body, timeout=60) as reply:
            for _ in reply.iter_lines():
                now = time.monotonic()
                if last is not None:
                    gaps.append(now - last)
                last = now
                if done.is_set():
                    return

    with ApiClient(server.base_url) as api:
        generate(api, regex="a")  # the worker is started
        thread = threading.Thread(target=neighbour)
        thread.start()
        try:
            for sampling in HOSTILE:
                began = time.monotonic()
                sampling = {"max_new_tokens": 4, **sampling}
                reply = api.post("/generate", {"text": PROMPT, "sampling_params": sampling})
                assert reply.status_code in (200, 400), reply.text
                # 2 s on a quiet machine; tests share theirs
                assert time.monotonic() - began < 10, list(sampling.items())[-1][1][:60]
        finally:
            done.set()
            thread.join()
        assert max(gaps) < 1.0
        generate(api, regex="a")
        api.wait_until_idle()
