"""A field that was to constrain the output is never lost; others that are unknown are ignored."""

from __future__ import annotations

from typing import Any

import pytest
from support.fake_engine import FakeServer

SCHEMA = {"type": "object"}
CHAT = "/v1/chat/completions"
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "hi"}]},
    "/v1/completions": {"prompt": "hi"},
    "/generate": {"text": "hi"},
}
# Misspelt, or another server's name -> the field that is meant.
OPENAI = {
    "reponse_format": "response_format",
    "responce_format": "response_format",
    "responseFormat": "response_format",
    "json_mode": "response_format",
    "json_shema": "json_schema",
    "jsonschema": "json_schema",
    "schema": "json_schema",
    "response_schema": "json_schema",
    "guided_jsn": "guided_json",
    "guided-json": "guided_json",
    "guided_regexp": "guided_regex",
    "guided_choices": "guided_choice",
    "guided_gramar": "guided_grammar",
    "guided_json_object": "guided_json",
    "regexp": "regex",
    "regx": "regex",
    "ebfn": "ebnf",
    "grammar": "ebnf",
    "choices": "choice",
    "structural_tags": "structural_tag",
    "structured_output": "structured_outputs",
    "output_schema": "json_schema",
    "format": "response_format",  # with a schema or "json" in it
    "structuredOutputs": "structured_outputs",
}
# What clients and other servers have beside: none of it may be taken for a constraint.
OTHERS = """
user metadata store service_tier reasoning prediction web_search_options verbosity voice
safety_identifier prompt_cache_key use_beam_search length_penalty include_stop_str_in_output
truncate_prompt_tokens prompt_logprobs allowed_token_ids bad_words add_special_tokens documents
mm_processor_kwargs request_id return_token_ids return_tokens_as_token_ids kv_transfer_params
vllm_xargs guided_decoding_backend provider models transforms route plugins think keep_alive
options input stop_sequences log_metrics bootstrap_host bootstrap_port bootstrap_room
data_parallel_rank custom_labels typical_p mirostat xtc_probability repeat_penalty cache_prompt
id_slot n_predict n_probs n_keep samplers tool_resources max_tool_calls tool_call_parser
return_full_text details adapter_id watermark truncate typical top_n_tokens detokenize modality
""".split()


def refused(path: str, fields: dict[str, Any]) -> tuple[str, str]:
    """The field and the text of the 400 that fields get."""
    server = FakeServer()
    reply = server.post(path, {**BODIES[path], **fields})
    assert reply.status_code == 400, (fields, reply.text[:300])
    assert server.engine.requests == []
    error = reply.json()["error"]
    return error["param"], error["message"]


@pytest.mark.parametrize("path", [CHAT, "/v1/completions"])
@pytest.mark.parametrize("name", OPENAI)
def test_a_misspelt_constraint_is_refused_with_what_is_meant(path: str, name: str) -> None:
    param, message = refused(path, {name: SCHEMA})

    assert param == name
    assert f"{name} is not a field of this request; did you mean {OPENAI[name]}?" in message


@pytest.mark.parametrize(
    ("name", "meant"), [("tool", "tools"), ("tool_choise", "tool_choice"), ("Tools", "tools")]
)
def test_misspelt_tools_are_refused_on_the_chat_route(name: str, meant: str) -> None:
    param, message = refused(CHAT, {name: [{"type": "function"}]})

    assert param == name
    assert f"did you mean {meant}?" in message


@pytest.mark.parametrize("name", ["paramters", "parameter", "input_schema", "strikt"])
def test_a_tools_misspelt_schema_is_refused(name: str) -> None:
    tool = {"type": "function", "function": {"name": "f", name: SCHEMA}}

    param, message = refused(CHAT, {"tools": [tool]})

    assert param == f"tools.0.function.{name}"
    assert "did you mean" in message


@pytest.mark.parametrize("path", BODIES)
def test_fields_in_an_object_that_only_a_client_library_unpacks_are_refused(path: str) -> None:
    if path == "/generate":
        param, message = refused(path, {"samplingParams": {"regex": "a"}})
        assert "did you mean sampling_params?" in message
    else:
        param, message = refused(path, {"extra_body": {"guided_json": SCHEMA}})
        assert "fields of the body itself" in message

    assert param in ("samplingParams", "extra_body")


@pytest.mark.parametrize("name", ["guided_whitespace_pattern", "whitespace_pattern"])
def test_a_pattern_for_whitespace_is_refused_with_what_there_is_instead(name: str) -> None:
    param, message = refused(CHAT, {name: "[ ]?"})

    assert param == name
    assert "json_whitespace" in message and "compact" in message


@pytest.mark.parametrize("name", ["whitespace_pattern", "disable_any_whitespace"])
def test_whitespace_among_structured_outputs_is_refused_with_what_there_is_instead(
    name: str,
) -> None:
    param, message = refused(CHAT, {"structured_outputs": {"regex": "a", name: True}})

    assert param == f"structured_outputs.{name}"
    assert "json_whitespace" in message


def test_constraints_in_an_object_of_another_server_are_refused() -> None:
    param, message = refused(CHAT, {"nvext": {"guided_choice": ["a"]}})

    assert param == "nvext"
    assert "fields of the body itself" in message


@pytest.mark.parametrize("name", ["guided_options_request", "guided_jsonnet"])
def test_a_constraint_that_is_not_offered_is_refused_and_not_dropped(name: str) -> None:
    param, message = refused(CHAT, {name: "x"})

    assert param == name
    assert "guided_json" in message


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("regexp", "did you mean regex?"),
        ("json_shema", "did you mean json_schema?"),
        ("guided_json", "did you mean json_schema?"),
        ("guided_regex", "did you mean regex?"),
        ("grammar", "did you mean ebnf?"),
        ("ebfn", "did you mean ebnf?"),
        ("max_tokens", "did you mean max_new_tokens"),
        ("temprature", "did you mean temperature?"),
        ("no_such_field", "it takes temperature, "),
    ],
)
def test_sampling_params_takes_no_unknown_field(name: str, shown: str) -> None:
    param, message = refused("/generate", {"sampling_params": {"temperature": 0, name: "a"}})

    assert param == f"sampling_params.{name}"
    assert f"sampling_params.{name} is not known" in message
    assert shown in message


@pytest.mark.parametrize("name", ["regex", "json_schema", "response_format", "guided_json"])
def test_a_constraint_beside_sampling_params_is_refused_with_its_place(name: str) -> None:
    param, message = refused("/generate", {name: SCHEMA})

    assert param == name
    assert "stands in sampling_params: json_schema, regex" in message


@pytest.mark.parametrize("path", BODIES)
def test_what_clients_send_beside_is_ignored(path: str) -> None:
    reply = FakeServer().post(path, {**BODIES[path], **dict.fromkeys(OTHERS, {"x": 1})})

    assert reply.status_code == 200, reply.text[:300]


@pytest.mark.parametrize("value", [None, False, "", [], {}])
@pytest.mark.parametrize("path", BODIES)
def test_an_unknown_field_that_is_not_set_asks_for_nothing(path: str, value: Any) -> None:
    fields: dict[str, Any] = {"response_schema": value, "tool": value, "extra_body": value}
    if path == "/generate":
        fields = {**fields, "sampling_params": {"regexp": value, "custom_params": value}}

    assert FakeServer().post(path, {**BODIES[path], **fields}).status_code == 200


def test_a_body_of_unknown_fields_is_refused_before_it_takes_time() -> None:
    _, message = refused(CHAT, {f"respons_{index}": 1 for index in range(100_000)})

    assert "at most 100 are taken" in message


@pytest.mark.parametrize("kind", ["text", "json_object"])
def test_a_schema_beside_a_type_that_has_none_is_refused(kind: str) -> None:
    value = {"type": kind, "json_schema": {"name": "n", "schema": SCHEMA}}

    param, message = refused(CHAT, {"response_format": value})

    assert param == "response_format.type"
    assert "'json_schema'" in message


def test_a_schema_of_type_json_object_is_followed() -> None:
    bad = {"type": "json_object", "schema": {"type": "thing"}}

    param, _ = refused(CHAT, {"response_format": bad})

    assert param == "response_format.schema"
    good = {"type": "json_object", "schema": {"type": "object"}}
    body = {**BODIES[CHAT], "response_format": good}
    assert FakeServer().post(CHAT, body).status_code == 200
