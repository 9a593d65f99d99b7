"""/metrics and the other descriptions tell what the server did and holds."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.api_client import ApiClient, generate_body, wait_until

ENDLESS = {"ignore_eos": True}
COUNTERS = ["num_requests", "num_aborted_requests", "num_retracted_requests", "generation_tokens"]
COUNTERS += ["prompt_tokens", "cache_query_tokens", "cache_hit_tokens", "evicted_tokens"]
GAUGES = ["num_running_reqs", "num_queue_reqs", "kv_used_tokens", "kv_available_tokens"]
GAUGES += ["kv_evictable_tokens", "max_total_num_tokens", "token_usage", "gen_throughput"]
HISTOGRAMS = ["time_to_first_token_seconds", "inter_token_latency_seconds"]
HISTOGRAMS += ["e2e_request_latency_seconds", "queue_time_seconds"]


def _scrape(api: ApiClient) -> dict[str, float]:
    """Return all samples by name, buckets left out."""
    text = api.get("/metrics").text
    return {
        sample.name: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if "le" not in sample.labels
    }


def test_every_promised_metric_is_there_with_its_kind(api: ApiClient) -> None:
    api.generate("Hello", 2)
    families = {one.name: one for one in text_string_to_metric_families(api.get("/metrics").text)}

    for names, kind in ((COUNTERS, "counter"), (GAUGES, "gauge"), (HISTOGRAMS, "histogram")):
        for name in names:
            family = families[f"runtime:{name}"]
            assert family.type == kind, name
            assert family.documentation
            assert all(one.labels["model_name"] for one in family.samples)
    samples = {one.name for family in families.values() for one in family.samples}
    assert {f"runtime:{name}_total" for name in COUNTERS} <= samples


def test_counters_count_tokens_and_requests(api: ApiClient) -> None:
    api.flush()
    before = _scrape(api)

    first = api.generate("Count these tokens, please, one after the other.", 7, sampling=ENDLESS)
    second = api.generate("Count these tokens, please, one after the other.", 5, sampling=ENDLESS)

    after = _scrape(api)
    num_prompt = first["meta_info"]["prompt_tokens"]

    def grown(name: str) -> float:
        return after[f"runtime:{name}"] - before[f"runtime:{name}"]

    assert grown("num_requests_total") == 2
    assert grown("generation_tokens_total") == 12
    assert grown("prompt_tokens_total") == grown("cache_query_tokens_total") == 2 * num_prompt
    assert grown("cache_hit_tokens_total") == second["meta_info"]["cached_tokens"] > 0
    assert grown("num_aborted_requests_total") == 0


def test_latencies_are_observed_once_per_event(api: ApiClient) -> None:
    before = _scrape(api)

    api.events("/generate", generate_body("Time this", 6, ENDLESS))

    after = _scrape(api)
    counts = {name: f"runtime:{name}_count" for name in HISTOGRAMS}
    grown = {name: after[full] - before.get(full, 0) for name, full in counts.items()}
    assert grown["time_to_first_token_seconds"] == 1
    assert grown["e2e_request_latency_seconds"] == 1
    assert grown["queue_time_seconds"] == 1
    assert grown["inter_token_latency_seconds"] == 5


def test_gauges_show_what_runs_now_and_aborts_are_counted(api: ApiClient) -> None:
    before = _scrape(api)
    with api.open_stream("/generate", generate_body("Once", 4000, ENDLESS)) as events:
        next(events)
        during = _scrape(api)
    wait_until(lambda: api.num_open() == 0, "the request ended")
    after = _scrape(api)

    assert during["runtime:num_running_reqs"] == 1
    assert during["runtime:kv_used_tokens"] > 0
    assert after["runtime:num_running_reqs"] == after["runtime:kv_used_tokens"] == 0
    name = "runtime:num_aborted_requests_total"
    assert after[name] == before[name] + 1


def test_metrics_and_kv_stats_tell_the_same(api: ApiClient) -> None:
    samples, kv = _scrape(api), api.kv()

    assert samples["runtime:kv_available_tokens"] == kv["available"]
    assert samples["runtime:kv_evictable_tokens"] == kv["evictable"]
    assert samples["runtime:max_total_num_tokens"] == kv["total"] == 16384


def test_the_model_is_described(api: ApiClient) -> None:
    models = api.get("/v1/models").json()
    facts = api.get("/model_info").json()
    server = api.get("/server_info").json()

    (card,) = models["data"]
    assert card["id"] == "smollm2-135m-instruct"
    assert card["max_model_len"] == facts["max_model_len"] == 8192
    assert facts["architectures"] == ["LlamaForCausalLM"]
    assert facts["is_generation"] is True
    assert server["max_total_num_tokens"] == 16384
    assert server["dtype"] == "bfloat16"
    assert api.get("/get_model_info").json() == facts
    assert api.get("/get_server_info").json().keys() == server.keys()
    assert api.get(f"/v1/models/{card['id']}").json() == card


def test_the_interface_is_described(api: ApiClient) -> None:
    schema: Any = api.get("/openapi.json").json()

    for path in ("/generate", "/v1/completions", "/v1/chat/completions", "/tokenize"):
        assert "requestBody" in schema["paths"][path]["post"]


@pytest.mark.parametrize("path", ["/health", "/ready", "/health_generate"])
def test_probes_are_well(api: ApiClient, path: str) -> None:
    assert api.get(path).json() == {"status": "up"}


@pytest.mark.parametrize("prefix", ["", "/v1"])
@pytest.mark.parametrize(
    "text", ["Hello, world", "naïve café", "🎉🎊", "  two  spaces\n\n", "中文"]
)
def test_text_survives_tokenising_and_back(api: ApiClient, prefix: str, text: str) -> None:
    answer = api.ok(prefix + "/tokenize", {"prompt": text})
    batch = api.ok(prefix + "/tokenize", {"prompt": [text, "x"]})

    back = api.ok(prefix + "/detokenize", {"tokens": answer["tokens"]})

    assert answer["count"] == len(answer["tokens"])
    assert answer["max_model_len"] == 8192
    assert batch["tokens"][0] == answer["tokens"]
    assert back["text"] == text
