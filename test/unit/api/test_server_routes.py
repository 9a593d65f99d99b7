"""Routes about the server itself: models, settings, cache, metrics, tokens, defaults."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.fake_engine import CONTEXT_LENGTH, FakeServer

from runtime.srt.api.metrics import ServerMetrics
from runtime.srt.errors import ConfigError
from runtime.srt.messages import (
    FinishReason,
    FlushCache,
    GenerateRequest,
    Progress,
    TextDelta,
)
from runtime.srt.sampling_params import SamplingParams


@pytest.fixture
def server() -> FakeServer:
    return FakeServer()


def test_models_tells_the_context_length(server: FakeServer) -> None:
    (model,) = server.get("/v1/models").json()["data"]

    assert model["id"] == "some/tiny-model"
    assert model["max_model_len"] == CONTEXT_LENGTH
    assert server.get("/v1/models/some/tiny-model").json()["id"] == "some/tiny-model"


@pytest.mark.parametrize("path", ["/model_info", "/get_model_info"])
def test_model_info_has_what_routers_and_frontends_read(server: FakeServer, path: str) -> None:
    info = server.get(path).json()

    assert info["model_path"] == "some/tiny-model"
    assert info["is_generation"] is True
    assert info["architectures"] == ["LlamaForCausalLM"]


@pytest.mark.parametrize("path", ["/server_info", "/get_server_info"])
def test_server_info_has_settings_sizes_and_accounting(server: FakeServer, path: str) -> None:
    info = server.get(path).json()

    assert info["schedule_policy"] == "lpm"
    assert info["max_total_num_tokens"] == 4096
    assert info["kv_stats"]["total"] == 4096
    assert info["internal_states"][0]["num_running_reqs"] == 0
    assert "version" in info and "startup_time" in info
    assert (info["device"], info["threads"]) == ("cpu", 3)
    assert info["max_req_input_len"] == CONTEXT_LENGTH


def test_the_longest_prompt_shown_is_limited_by_the_pool_too() -> None:
    info = FakeServer(pool_tokens=100).get("/server_info").json()

    assert info["max_req_input_len"] == 100


def test_kv_stats_are_top_level_tokens(server: FakeServer) -> None:
    stats = server.get("/kv_stats").json()

    assert stats == {
        "total": 4096,
        "available": 4000,
        "evictable": 96,
        "protected": 0,
        "held": 0,
        "pinned": 0,
    }


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_flush_waits_as_long_as_asked(server: FakeServer, method: str) -> None:
    assert server.call(method, "/flush_cache").status_code == 200
    assert server.call(method, "/flush_cache?timeout=3").status_code == 200

    waits = [one.timeout_seconds for one in server.engine.received if isinstance(one, FlushCache)]
    assert waits[0] >= 2 and waits[1] == 3


def test_a_flush_that_fails_or_is_asked_wrongly_is_a_400(server: FakeServer) -> None:
    for timeout in ("-1", "nan", "inf", "soon", "1e9"):
        reply = server.post(f"/flush_cache?timeout={timeout}")
        assert reply.status_code == 400, timeout
        assert reply.json()["error"]["param"] == "timeout"

    server.engine.flush_succeeds = False

    assert server.post("/flush_cache").status_code == 400


@pytest.mark.parametrize("body", [{}, {"rid": ""}, {"rid": None}, {"rid": "", "abort_all": False}])
def test_an_abort_of_nothing_is_refused(server: FakeServer, body: Any) -> None:
    assert server.post("/abort_request", body).status_code == 400


@pytest.mark.parametrize("prefix", ["", "/v1"])
def test_tokenize_and_detokenize_are_inverse(server: FakeServer, prefix: str) -> None:
    there = server.post(f"{prefix}/tokenize", {"prompt": "hé"}).json()
    back = server.post(f"{prefix}/detokenize", {"tokens": there["tokens"]}).json()

    assert there == {"tokens": [104, 0xC3, 0xA9], "count": 3, "max_model_len": CONTEXT_LENGTH}
    assert back["prompt"] == back["text"] == "hé"


def test_lists_are_tokenized_one_by_one(server: FakeServer) -> None:
    reply = server.post("/tokenize", {"text": ["a", "bc"]}).json()

    assert reply["tokens"] == [[97], [98, 99]]
    assert reply["count"] == [1, 2]
    assert server.post("/detokenize", {"tokens": [[97], []]}).json()["text"] == ["a", ""]


def test_conversations_are_tokenized_as_the_chat_route_does(server: FakeServer) -> None:
    messages = [{"role": "user", "content": "hi"}]

    tokens = server.post("/tokenize", {"messages": messages}).json()["tokens"]
    server.post("/v1/chat/completions", {"messages": messages})

    assert tokens == server.engine.requests[0].input_ids


@pytest.mark.parametrize("tokens", [None, "a", [258], [-1], [2**70], [1.5], [True], {"a": 1}])
def test_wrong_tokens_are_refused(server: FakeServer, tokens: Any) -> None:
    reply = server.post("/detokenize", {"tokens": tokens})

    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == "tokens"


def test_defaults_come_from_request_then_flag_then_model_then_route() -> None:
    server = FakeServer(
        generation_defaults={"temperature": 0.2, "top_p": 0.3, "top_k": 40},
        preferred_sampling_params='{"top_p": 0.6, "max_new_tokens": 50}',
    )

    server.post("/v1/completions", {"prompt": "hi", "temperature": 0.9})

    sampling = server.engine.requests[0].sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.9, 0.6, 40)
    assert (sampling.max_new_tokens, sampling.min_p) == (50, 0.0)


@pytest.mark.parametrize(
    ("preferred", "message"),
    [
        ('{"temprature": 1}', "'temprature' is not known; did you mean temperature?"),
        ('{"temperature": "hot"}', "temperature: "),
        ('{"top_p": 7}', "top_p is 7"),
        ('{"stop_token_ids": [258]}', "stop_token_ids contains 258; ids go from 0 to 257"),
    ],
)
def test_a_wrong_preferred_field_is_refused_at_the_start(preferred: str, message: str) -> None:
    with pytest.raises(ConfigError, match="^--preferred-sampling-params: ") as raised:
        FakeServer(preferred_sampling_params=preferred)

    assert message in raised.value.message


def test_the_models_defaults_can_be_left_out() -> None:
    server = FakeServer(generation_defaults={"temperature": 0.2}, sampling_defaults="openai")

    server.post("/v1/completions", {"prompt": "hi"})

    assert server.engine.requests[0].sampling.temperature == 1.0


def test_metrics_parse_and_count(server: FakeServer) -> None:
    server.post("/generate", {"text": "hi", "sampling_params": {"max_new_tokens": 3}})

    families = text_string_to_metric_families(server.get("/metrics").text)
    values = {sample.name: sample.value for one in families for sample in one.samples}

    assert values["runtime:prompt_tokens_total"] == 2
    assert values["runtime:num_requests_total"] == 1
    assert values["runtime:num_running_reqs"] == 0
    assert values["runtime:cache_hit_tokens_total"] == 7
    assert values["runtime:kv_available_tokens"] == 4000
    assert values["runtime:time_to_first_token_seconds_count"] == 1
    assert values["runtime:inter_token_latency_seconds_count"] == 2
    assert values["runtime:e2e_request_latency_seconds_count"] == 1
    assert values["runtime:queue_time_seconds_count"] == 1


def test_the_first_token_of_an_unstreamed_request_is_timed_where_it_was_drawn(
    server: FakeServer,
) -> None:
    arrival = time.monotonic() - 50.0
    request = GenerateRequest(
        rid="a", input_ids=[1], sampling=SamplingParams(), arrival_seconds=arrival
    )
    progress = Progress(
        rid="a",
        token_ids=[1, 2],
        prompt_tokens=1,
        completion_tokens=2,
        cached_tokens=0,
        finish=FinishReason(type="length"),
        first_token_seconds=arrival + 0.25,
    )
    metrics = ServerMetrics("model")

    metrics.on_delta(request, TextDelta("ab", progress))

    text = asyncio.run(metrics.scrape(server.client)).decode()
    sums = {
        sample.name: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert sums["runtime:time_to_first_token_seconds_sum"] == pytest.approx(0.25)
    assert sums["runtime:e2e_request_latency_seconds_sum"] >= 50


@pytest.mark.parametrize("path", ["/kv_stats", "/server_info", "/get_server_info", "/metrics"])
def test_a_scheduler_that_does_not_answer_holds_no_route_up(server: FakeServer, path: str) -> None:
    server.engine.answers_queries = False

    started = time.monotonic()
    reply = server.get(path)

    assert time.monotonic() - started < 4
    if path == "/metrics":
        assert reply.status_code == 200
        assert "runtime:time_to_first_token_seconds_count" in reply.text
        assert 'runtime:scheduler_up{model_name="some/tiny-model"} 0.0' in reply.text
    else:
        assert reply.status_code == 503
        assert "the scheduler did not answer within" in reply.json()["error"]["message"]
        assert int(reply.headers["Retry-After"]) > 0


def test_metrics_keep_their_values_after_the_scheduler_is_gone(server: FakeServer) -> None:
    before = server.get("/metrics").text
    server.client.mark_dead("gone")

    after = server.get("/metrics")

    assert after.status_code == 200
    assert 'runtime:scheduler_up{model_name="some/tiny-model"} 1.0' in before
    assert 'runtime:scheduler_up{model_name="some/tiny-model"} 0.0' in after.text
    assert "runtime:kv_available_tokens" in before and "runtime:kv_available_tokens" in after.text
