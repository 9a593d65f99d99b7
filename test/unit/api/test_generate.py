"""POST /generate as native clients see it."""

from __future__ import annotations

from typing import Any

import pytest
from support.fake_engine import CONTEXT_LENGTH, END_ID, VOCAB_SIZE, FakeServer
from support.http_calls import events

from runtime.srt.messages import FinishReason


@pytest.fixture
def server() -> FakeServer:
    return FakeServer()


def test_a_single_prompt_gives_one_object(server: FakeServer) -> None:
    reply = server.post(
        "/generate", {"text": "hi", "rid": "r1", "sampling_params": {"max_new_tokens": 3}}
    ).json()

    assert reply["text"] == "abc"
    assert reply["output_ids"] == [97, 98, 99]
    info = reply["meta_info"]
    assert info["id"] == "r1"
    assert info["finish_reason"] == {"type": "length", "length": 3}
    assert (info["prompt_tokens"], info["completion_tokens"], info["cached_tokens"]) == (2, 3, 0)
    assert info["e2e_latency"] > 0


def test_put_answers_like_post(server: FakeServer) -> None:
    body = {"input_ids": [1, 2], "sampling_params": {"max_new_tokens": 2}}

    assert server.call("PUT", "/generate", json=body).json()["text"] == "ab"


@pytest.mark.parametrize(
    ("field", "prompts"), [("text", ["hi", "you"]), ("input_ids", [[1, 2], [3, 4, 5]])]
)
def test_a_batch_gives_a_list_in_order(server: FakeServer, field: str, prompts: Any) -> None:
    reply = server.post("/generate", {field: prompts, "rid": "b"}).json()

    assert [one["meta_info"]["prompt_tokens"] for one in reply] == [2, 3]
    assert [one["meta_info"]["id"] for one in reply] == ["b_0", "b_1"]


def test_a_batch_of_one_is_still_a_list(server: FakeServer) -> None:
    assert len(server.post("/generate", {"text": ["hi"]}).json()) == 1


def test_several_samples_give_a_list_item_by_item(server: FakeServer) -> None:
    single = server.post("/generate", {"text": "hi", "sampling_params": {"n": 3}}).json()
    batch = server.post("/generate", {"text": ["a", "bb"], "sampling_params": {"n": 2}}).json()

    assert len(single) == 3
    assert [one["meta_info"]["prompt_tokens"] for one in batch] == [1, 1, 2, 2]


def test_fields_may_differ_per_item(server: FakeServer) -> None:
    reply = server.post(
        "/generate",
        {
            "text": ["a", "b"],
            "rid": ["first", "second"],
            "sampling_params": [{"max_new_tokens": 1}, {"max_new_tokens": 2}],
            "return_logprob": [True, False],
            "logprob_start_len": [0, -1],
            "top_logprobs_num": [1, 0],
            "token_ids_logprob": [[5], None],
            "cache_salt": ["x", "y"],
            "priority": [1, 2],
            "program_id": "p",
            "branch_id": ["0", "1"],
        },
    ).json()

    assert [one["text"] for one in reply] == ["a", "ab"]
    assert [one["meta_info"]["id"] for one in reply] == ["first", "second"]
    assert ["input_token_logprobs" in one["meta_info"] for one in reply] == [True, False]
    first, second = server.engine.requests
    assert first.namespace != second.namespace
    assert (first.priority, second.priority) == (1, 2)
    assert (first.program_id, second.program_id) == ("p", "p")
    assert (first.branch_id, second.branch_id) == ("0", "1")


def test_streams_repeat_the_text_so_far(server: FakeServer) -> None:
    body = {"text": "hi", "stream": True, "sampling_params": {"max_new_tokens": 3}}

    seen = events(server.post("/generate", body).text)

    assert seen[-1] == "[DONE]"
    assert [one["text"] for one in seen[:-1]] == ["a", "ab", "abc"]
    assert [one["output_ids"] for one in seen[:-1]] == [[97], [97, 98], [97, 98, 99]]
    assert [bool(one["meta_info"]["finish_reason"]) for one in seen[:-1]] == [False, False, True]
    assert "index" not in seen[0]


def test_incremental_streams_carry_only_what_is_new() -> None:
    server = FakeServer(incremental_streaming_output=True)
    body = {
        "text": "hi",
        "stream": True,
        "return_logprob": True,
        "logprob_start_len": 0,
        "sampling_params": {"max_new_tokens": 2},
    }

    seen = events(server.post("/generate", body).text)[:-1]

    assert [one["text"] for one in seen] == ["a", "b"]
    assert [one["output_ids"] for one in seen] == [[97], [98]]
    assert [len(one["meta_info"]["output_token_logprobs"]) for one in seen] == [1, 1]
    assert [len(one["meta_info"]["input_token_logprobs"]) for one in seen] == [2, 0]


def test_a_streamed_batch_numbers_its_chunks(server: FakeServer) -> None:
    seen = events(server.post("/generate", {"text": ["a", "b"], "stream": True}).text)[:-1]

    finished = [one["index"] for one in seen if one["meta_info"]["finish_reason"]]
    assert sorted(finished) == [0, 1]


def test_logprobs_are_triples_with_text_on_request(server: FakeServer) -> None:
    body = {
        "text": "hi",
        "return_logprob": True,
        "logprob_start_len": 0,
        "top_logprobs_num": 2,
        "token_ids_logprob": [7],
        "sampling_params": {"max_new_tokens": 1},
    }

    plain = server.post("/generate", body).json()["meta_info"]
    named = server.post("/generate", {**body, "return_text_in_logprobs": True}).json()["meta_info"]

    assert plain["input_token_logprobs"] == [[None, 104, None], [-0.5, 105, None]]
    assert plain["output_token_logprobs"] == [[-0.5, 97, None]]
    assert plain["output_token_logprobs_length"] == 1
    assert plain["input_top_logprobs"] == [None, [[-0.5, 105, None], [-1.0, 106, None]]]
    assert plain["output_token_ids_logprobs"] == [[[-3.0, 7, None]]]
    assert named["input_token_logprobs"] == [[None, 104, "h"], [-0.5, 105, "i"]]


def test_prompt_logprobs_begin_where_asked(server: FakeServer) -> None:
    body = {"text": "hello", "return_logprob": True, "logprob_start_len": 3}

    info = server.post("/generate", body).json()["meta_info"]
    without = server.post("/generate", {"text": "hello", "return_logprob": True}).json()

    assert [one[1] for one in info["input_token_logprobs"]] == [ord("l"), ord("o")]
    assert without["meta_info"]["input_token_logprobs"] == []


def test_zero_new_tokens_only_read_the_prompt(server: FakeServer) -> None:
    body = {
        "input_ids": [1, 2, 3],
        "return_logprob": True,
        "logprob_start_len": 0,
        "sampling_params": {"max_new_tokens": 0},
    }

    reply = server.post("/generate", body).json()

    assert reply["text"] == "" and reply["output_ids"] == []
    assert len(reply["meta_info"]["input_token_logprobs"]) == 3


def test_scoring_without_a_start_means_the_whole_prompt(server: FakeServer) -> None:
    body = {"text": "hi", "return_logprob": True, "sampling_params": {"max_new_tokens": 0}}

    info = server.post("/generate", body).json()["meta_info"]
    none = server.post("/generate", {**body, "logprob_start_len": -1}).json()["meta_info"]

    assert [one[1] for one in info["input_token_logprobs"]] == [104, 105]
    assert none["input_token_logprobs"] == []


def test_prompt_ids_come_back_on_request(server: FakeServer) -> None:
    body = {"text": "hi", "return_prompt_token_ids": True}

    assert server.post("/generate", body).json()["prompt_token_ids"] == [104, 105]


def test_the_stop_that_ended_a_request_is_told(server: FakeServer) -> None:
    server.engine.output = lambda request: [97, END_ID]
    server.engine.finish = lambda request: FinishReason(type="stop", matched=END_ID)

    reply = server.post("/generate", {"text": "hi"}).json()

    assert reply["text"] == "a"
    assert reply["meta_info"]["finish_reason"] == {"type": "stop", "matched": END_ID}
    assert reply["meta_info"]["completion_tokens"] == 2


def test_null_stands_for_the_default_of_every_sampling_field(server: FakeServer) -> None:
    names = (
        "max_new_tokens min_new_tokens stop stop_token_ids stop_regex temperature top_p top_k "
        "min_p frequency_penalty presence_penalty repetition_penalty logit_bias n ignore_eos "
        "skip_special_tokens spaces_between_special_tokens no_stop_trim stream_interval "
        "sampling_seed regex json_schema ebnf structural_tag"
    ).split()

    server.post("/generate", {"text": "hi", "sampling_params": dict.fromkeys(names)})
    server.post("/generate", {"text": "hi"})

    first, second = server.engine.requests
    assert first.sampling == second.sampling
    assert first.sampling.max_new_tokens == 128


def test_sampling_fields_reach_the_scheduler(server: FakeServer) -> None:
    sampling = {
        "max_new_tokens": 9,
        "min_new_tokens": 2,
        "stop": ["x", "y"],
        "stop_token_ids": [3],
        "stop_regex": "[0-9]",
        "temperature": 0,
        "top_p": 0.5,
        "top_k": 7,
        "min_p": 0.1,
        "frequency_penalty": 0.2,
        "presence_penalty": 0.3,
        "repetition_penalty": 1.1,
        "logit_bias": {"5": 1},
        "ignore_eos": True,
        "skip_special_tokens": False,
        "no_stop_trim": True,
        "sampling_seed": 42,
    }

    server.post("/generate", {"text": "hi", "sampling_params": sampling})

    sent = server.engine.requests[0].sampling
    for name, value in sampling.items():
        if name not in ("stop", "stop_token_ids", "stop_regex", "logit_bias"):
            assert getattr(sent, name) == value, name
    assert sent.stop == ("x", "y") and sent.stop_regex == ("[0-9]",)
    assert sent.stop_token_ids == (3,) and sent.logit_bias == ((5, 1.0),)


@pytest.mark.parametrize("top_k", [-1, 0])
def test_top_k_of_minus_one_or_zero_is_the_whole_vocabulary(top_k: int) -> None:
    server = FakeServer(generation_defaults={"top_k": 40})

    server.post("/generate", {"text": "hi", "sampling_params": {"top_k": top_k}})

    assert server.engine.requests[0].sampling.top_k is None


def test_salt_and_key_are_never_confused(server: FakeServer) -> None:
    pairs = [("a", "bc"), ("ab", "c"), ("abc", None), (None, "abc"), (None, None)]

    for salt, key in pairs:
        server.post("/generate", {"text": "hi", "cache_salt": salt, "extra_key": key})

    assert len({one.namespace for one in server.engine.requests}) == len(pairs)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "text"),
        ({"text": ""}, "text"),
        ({"text": []}, "text"),
        ({"text": 5}, "text"),
        ({"text": [1, 2]}, "text"),
        ({"text": ["a", 1]}, "text"),
        ({"input_ids": []}, "input_ids"),
        ({"input_ids": [[]]}, "input_ids"),
        ({"input_ids": [[1], [True]]}, "input_ids.1"),
        ({"input_ids": "a"}, "input_ids"),
        ({"input_ids": [VOCAB_SIZE]}, "input_ids"),
        ({"input_ids": [-1]}, "input_ids"),
        ({"input_ids": [2**70]}, "input_ids"),
        ({"input_ids": [1.5]}, "input_ids"),
        ({"text": "a", "input_ids": [1]}, "text"),
        ({"text": "a", "rid": 5}, "rid"),
        ({"text": "a", "rid": ""}, "rid"),
        ({"text": ["a", "b"], "rid": ["x", "x"]}, "rid"),
        ({"text": ["a", "b"], "rid": ["x"]}, "rid"),
        ({"text": ["a", "b"], "priority": [1]}, "priority"),
        ({"text": "a", "priority": True}, "priority"),
        ({"text": "a", "program_id": 7}, "program_id"),
        ({"text": "a", "program_id": "x" * 513}, "program_id"),
        ({"text": "a", "branch_id": ""}, "branch_id"),
        ({"text": ["a", "b"], "branch_id": ["x"]}, "branch_id"),
        ({"text": "a", "priority": 2**40}, "priority"),
        ({"text": "a", "stream": "yes"}, "stream"),
        ({"text": "a", "return_logprob": 1}, "return_logprob"),
        ({"text": "a", "return_logprob": True, "logprob_start_len": -2}, "logprob_start_len"),
        ({"text": "a", "return_logprob": True, "logprob_start_len": 5}, "logprob_start_len"),
        ({"text": "a", "return_logprob": True, "top_logprobs_num": -1}, "top_logprobs_num"),
        ({"text": "a", "return_logprob": True, "token_ids_logprob": [999]}, "token_ids_logprob"),
        ({"text": "a", "token_ids_logprob": ["x"]}, "token_ids_logprob"),
        ({"text": "a", "sampling_params": "hot"}, "sampling_params"),
        ({"text": "a", "sampling_params": [{}, {}]}, "sampling_params"),
        ({"text": "a", "sampling_params": {"temperature": "1"}}, "sampling_params.temperature"),
        ({"text": "a", "sampling_params": {"temperature": -1}}, "temperature"),
        ({"text": ["a"], "sampling_params": [{"top_k": 1.5}]}, "sampling_params.0.top_k"),
        (
            {"text": "a", "sampling_params": {"max_new_tokens": True}},
            "sampling_params.max_new_tokens",
        ),
        ({"text": "a", "sampling_params": {"max_new_tokens": -1}}, "max_new_tokens"),
        ({"text": "a", "sampling_params": {"n": 0}}, "n"),
        ({"text": "a", "sampling_params": {"stop": [1]}}, "stop"),
        ({"text": "a", "sampling_params": {"stop": ["s"] * 33}}, "stop"),
        ({"text": "a", "sampling_params": {"stop_regex": "("}}, "stop_regex"),
        ({"text": "a", "sampling_params": {"logit_bias": {"x": 1}}}, "logit_bias"),
        ({"text": "a", "sampling_params": {"logit_bias": {"999": 1}}}, "logit_bias"),
        ({"text": "a", "sampling_params": {"stop_token_ids": [999]}}, "stop_token_ids"),
        ({"text": "a", "sampling_params": {"max_new_tokens": CONTEXT_LENGTH}}, "max_new_tokens"),
        ({"text": "a", "sampling_params": {"regex": 5}}, "regex"),
        ({"text": "a", "sampling_params": {"json_schema": "{"}}, "json_schema"),
        ({"text": "a", "sampling_params": {"ebnf": ["x"]}}, "ebnf"),
        ({"text": "a", "sampling_params": {"structural_tag": "x"}}, "structural_tag"),
        ({"text": "a", "sampling_params": {"regex": "a", "choice": ["b"]}}, "choice"),
        ({"text": "a", "image_data": "x"}, "image_data"),
        ({"text": "a", "lora_path": "x"}, "lora_path"),
        ({"text": "a", "return_hidden_states": True}, "return_hidden_states"),
    ],
)
def test_mistakes_are_named_and_reach_nobody(
    server: FakeServer, body: dict[str, Any], param: str
) -> None:
    reply = server.post("/generate", body)

    assert reply.status_code == 400, reply.text
    error = reply.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param
    assert server.engine.requests == []


def test_one_bad_prompt_of_a_batch_sends_none(server: FakeServer) -> None:
    reply = server.post("/generate", {"text": ["ok", "x" * 2000]})

    assert reply.status_code == 400
    assert server.engine.requests == []


def test_what_clients_send_as_unset_is_taken(server: FakeServer) -> None:
    body = {
        "text": "hi",
        "lora_path": None,
        "return_hidden_states": False,
        "image_data": [],
        "return_routed_experts": False,
        "unknown": {"x": 1},
        "sampling_params": {"regex": "", "custom_params": None},
    }

    assert server.post("/generate", body).status_code == 200


def test_too_many_completions_in_one_body_are_refused(server: FakeServer) -> None:
    body = {"input_ids": [[1]] * 100, "sampling_params": {"n": 100}}

    reply = server.post("/generate", body)

    assert reply.status_code == 400
    assert "10000 completions" in reply.json()["error"]["message"]
