"""/pin_prefix and /unpin_prefix: three kinds of prefix, the salts, refusals that name the field."""

from __future__ import annotations

import time
from typing import Any

import pytest
from support.fake_engine import FakeServer

from runtime.srt.messages import FinishReason


@pytest.fixture
def server() -> FakeServer:
    return FakeServer()


@pytest.mark.parametrize(
    ("prefix", "prompt"),
    [
        ({"text": "hi"}, "hi"),
        ({"input_ids": [104, 105]}, "hi"),
        (
            {"messages": [{"role": "system", "content": "hi"}]},
            "<|start|>system\nhi<|end|>\n",
        ),
    ],
)
def test_a_prefix_is_computed_for_no_tokens_and_pinned(
    server: FakeServer, prefix: dict[str, Any], prompt: str
) -> None:
    reply = server.post("/pin_prefix", {**prefix, "ttl_seconds": 60})

    assert reply.status_code == 200, reply.text
    (request,) = server.engine.requests
    assert server.client.tokenizer.decode(request.input_ids, skip_special_tokens=False) == prompt
    assert request.sampling.max_new_tokens == 0 and request.pin_seconds == 60
    pin = reply.json()
    assert pin["pin_id"] == request.rid and pin["ttl_seconds"] == 60
    assert pin["num_tokens"] == pin["prompt_tokens"] == len(request.input_ids)
    assert pin["expires_at"] == pytest.approx(time.time() + 60, abs=5)


def test_salt_and_key_keep_pins_apart_as_they_do_prompts(server: FakeServer) -> None:
    salts = {"cache_salt": "a", "extra_key": "b"}
    server.post("/pin_prefix", {"text": "hi", "ttl_seconds": 1, **salts})
    server.post("/generate", {"text": "hi", **salts})

    pinned, generated = server.engine.requests
    assert pinned.namespace == generated.namespace is not None


@pytest.mark.parametrize("method", ["POST", "DELETE"])
def test_unpin_ends_a_pin_once(server: FakeServer, method: str) -> None:
    pin = server.post("/pin_prefix", {"text": "hi", "ttl_seconds": 60}).json()
    body = {"pin_id": pin["pin_id"]}

    first = server.call(method, "/unpin_prefix", json=body)
    second = server.call(method, "/unpin_prefix", json=body)

    assert first.status_code == 200 and first.json()["num_tokens"] == 2
    assert second.status_code == 404
    assert second.json()["error"]["param"] == "pin_id"
    assert second.json()["error"]["code"] == "pin_not_found"


@pytest.mark.parametrize(
    ("body", "param", "text"),
    [
        ({"text": "hi"}, "ttl_seconds", "missing"),
        ({"text": "hi", "ttl_seconds": 0}, "ttl_seconds", "ttl_seconds is 0"),
        ({"text": "hi", "ttl_seconds": 1e9}, "ttl_seconds", "at most 604800"),
        ({"text": "hi", "ttl_seconds": "1"}, "ttl_seconds", ""),
        ({"ttl_seconds": 1}, "text", "missing"),
        ({"text": "hi", "input_ids": [1], "ttl_seconds": 1}, "input_ids", "send one"),
        ({"input_ids": [[1], [2]], "ttl_seconds": 1}, "input_ids", "list of token ids"),
        ({"input_ids": [999], "ttl_seconds": 1}, "input_ids", "999"),
        ({"text": "x" * 600, "ttl_seconds": 1}, "text", "512"),
        ({"text": "hi", "cache_salt": "a\n", "ttl_seconds": 1}, "cache_salt", "unprintable"),
    ],
)
def test_a_wrong_field_is_a_400_that_names_it(
    server: FakeServer, body: dict[str, Any], param: str, text: str
) -> None:
    reply = server.post("/pin_prefix", body)

    assert reply.status_code == 400, reply.text
    error = reply.json()["error"]
    assert error["param"] == param and text in error["message"]
    assert not server.engine.requests


def test_what_the_scheduler_refuses_is_a_400_with_the_field_and_its_text(
    server: FakeServer,
) -> None:
    server.engine.output = lambda request: []
    server.engine.finish = lambda request: FinishReason(
        type="abort", message="12 of at most 10 tokens", status_code=400
    )

    reply = server.post("/pin_prefix", {"input_ids": [1, 2], "ttl_seconds": 1})

    assert reply.status_code == 400
    error = reply.json()["error"]
    assert (error["param"], error["code"]) == ("input_ids", "pin_refused")
    assert "12 of at most 10" in error["message"]


def test_pins_show_in_server_info_and_metrics(server: FakeServer) -> None:
    state = server.get("/server_info").json()["internal_states"][0]
    metrics = server.get("/metrics").text

    assert state["num_pins"] == 0 and state["pin_limit_tokens"] == 0
    assert state["kv_stats"]["pinned"] == 0
    assert state["counters"]["preemptions"] == 0
    for name in ("num_pins", "kv_pinned_tokens", "num_preempted_requests_total"):
        assert f"runtime:{name}{{" in metrics
