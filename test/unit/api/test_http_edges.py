"""What every route does: errors in one form, keys, size limits, request ids, draining."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from support.fake_engine import FakeServer
from support.http_calls import events

from runtime.srt.errors import ConfigError
from runtime.srt.messages import FinishReason, GenerateRequest

POSTS = [
    "/generate",
    "/v1/completions",
    "/v1/chat/completions",
    "/tokenize",
    "/v1/tokenize",
    "/detokenize",
    "/v1/detokenize",
    "/abort_request",
]
AUTH = {"Authorization": "Bearer secret-key"}
ADMIN = {"Authorization": "Bearer admin-key"}


@pytest.fixture
def server() -> FakeServer:
    return FakeServer()


ODD: list[Any] = [
    float("nan"),
    10**400,
    -(10**30),
    "\x00",
    "\ud800",
    {"": {}},
    [[[[]]]],
    True,
]
FIELDS = {
    "/generate": "text input_ids rid priority cache_salt token_ids_logprob sampling_params",
    "/v1/completions": "prompt n max_tokens temperature stop logit_bias seed logprobs model",
    "/v1/chat/completions": "messages top_logprobs stream_options chat_template_kwargs rid",
    "/tokenize": "prompt messages",
    "/detokenize": "tokens",
    "/abort_request": "rid",
}


def odd_bodies(fields: str) -> list[bytes]:
    deep = b'{"text": ' + b"[" * 3000 + b"]" * 3000 + b"}"
    base = {"messages": [{"role": "user", "content": "a"}], "tokens": [1], "return_logprob": True}
    return [b'{"prompt": "a"} x', deep] + [
        json.dumps({**base, name: value}).encode() for name in fields.split() for value in ODD
    ]


@pytest.mark.parametrize(("path", "fields"), FIELDS.items())
def test_no_body_makes_a_server_error(server: FakeServer, path: str, fields: str) -> None:
    async def go() -> list[tuple[bytes, int]]:
        async with server.http() as http:
            return [
                (body, (await http.post(path, content=body)).status_code)
                for body in odd_bodies(fields)
            ]

    for body, status in asyncio.run(go()):
        assert status in (200, 400, 404), (body[:80], status)


@pytest.mark.parametrize("path", POSTS)
@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"3", b"\xff"])
def test_a_body_that_is_no_json_object_is_a_400(server: FakeServer, path: str, body: bytes) -> None:
    reply = server.call("POST", path, content=body)

    assert reply.status_code == 400
    assert "body" in reply.json()["error"]["message"]


def test_the_content_type_does_not_matter(server: FakeServer) -> None:
    reply = server.call("POST", "/generate", content=b'{"text": "hi"}')

    assert reply.status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/nowhere", 404), ("GET", "/generate", 405), ("GET", "/v1/models/other", 404)],
)
def test_routing_errors_are_nested_too(
    server: FakeServer, method: str, path: str, status: int
) -> None:
    reply = server.call(method, path)

    assert reply.status_code == status
    assert set(reply.json()["error"]) == {"message", "type", "param", "code"}


def test_an_unknown_model_is_a_404_and_its_aliases_are_not(server: FakeServer) -> None:
    known = ["some/tiny-model", "tiny-model", "/elsewhere/tiny-model", "default", "", None]
    for name in known:
        reply = server.post("/v1/completions", {"prompt": "hi", "model": name})
        assert reply.status_code == 200, name

    reply = server.post("/v1/completions", {"prompt": "hi", "model": "gpt-4"})

    assert reply.status_code == 404
    assert reply.json()["error"]["code"] == "model_not_found"


def test_a_defect_is_a_500_without_its_text(
    server: FakeServer, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(request: GenerateRequest, at_once: Any = None) -> AsyncIterator[Any]:
        raise RuntimeError("secret detail")

    server.client.stream = broken  # type: ignore[method-assign]

    for body in ({"text": "hi"}, {"text": ["a", "b"]}, {"text": "hi", "stream": True}):
        reply = server.post("/generate", body)
        assert reply.status_code == 500
        assert reply.json()["error"]["type"] == "internal_server_error"
        assert "secret" not in reply.text
    assert "secret detail" in caplog.text


def test_an_abort_by_the_engine_keeps_its_status(server: FakeServer) -> None:
    server.engine.output = lambda request: []
    server.engine.finish = lambda request: FinishReason(
        type="abort", message="too busy", status_code=503, error_type="overloaded_error"
    )

    for body in ({"text": "hi"}, {"text": "hi", "stream": True}):
        reply = server.post("/generate", body)
        assert reply.status_code == 503
        assert reply.headers["retry-after"] == "1"
        assert reply.json()["error"]["message"] == "too busy"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/generate", {"text": "hi"}),
        ("/v1/completions", {"prompt": "hi"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}),
    ],
)
def test_an_error_in_mid_stream_is_an_event_before_done(
    server: FakeServer, path: str, body: dict[str, Any]
) -> None:
    server.engine.output = lambda request: [97, 98]
    server.engine.finish = lambda request: FinishReason(
        type="abort", message="no room", status_code=500
    )

    reply = server.post(path, {**body, "stream": True})

    assert reply.status_code == 200
    seen = events(reply.text)
    assert seen[-1] == "[DONE]"
    assert seen[-2]["error"]["message"] == "no room"


@pytest.mark.parametrize(("status", "code"), [("starting", 503), ("draining", 503), ("dead", 500)])
def test_no_request_is_taken_unless_up(server: FakeServer, status: Any, code: int) -> None:
    server.client.status = status

    reply = server.post("/v1/completions", {"prompt": "hi"})

    assert reply.status_code == code
    assert ("retry-after" in reply.headers) == (code == 503)
    assert server.get("/health").status_code == 503
    assert server.get("/ready").status_code == 503


def test_health_is_open_and_generates_on_request(server: FakeServer) -> None:
    assert server.get("/health").status_code == 200
    assert server.call("HEAD", "/health").status_code == 200
    assert server.get("/ready").status_code == 200
    assert server.engine.requests == []

    assert server.get("/health_generate").status_code == 200

    assert server.engine.requests[0].sampling.max_new_tokens == 1


def test_with_a_key_only_probes_and_metrics_are_open() -> None:
    server = FakeServer(api_key="secret-key")

    for path in ("/health", "/ready", "/health_generate", "/metrics"):
        assert server.get(path).status_code == 200, path
    for path in ("/v1/models", "/server_info", "/openapi.json", "/flush_cache", "/nowhere"):
        assert server.get(path).status_code == 401, path
        assert server.get(path, headers={"Authorization": "Bearer wrong"}).status_code == 401
        assert server.get(path, headers={"Authorization": "Basic secret-key"}).status_code == 401
    for path in POSTS:
        reply = server.post(path, {})
        assert reply.status_code == 401, path
        assert reply.headers["www-authenticate"] == "Bearer"
        assert reply.json()["error"]["type"] == "authentication_error"
    assert server.get("/v1/models", headers=AUTH).status_code == 200
    assert server.get("/flush_cache", headers=AUTH).status_code == 200


def test_an_admin_key_alone_opens_the_admin_routes() -> None:
    server = FakeServer(api_key="secret-key", admin_api_key="admin-key")

    assert server.post("/flush_cache").status_code == 401
    assert server.post("/flush_cache", headers=AUTH).status_code == 403
    assert server.post("/flush_cache", headers=ADMIN).status_code == 200
    assert server.post("/abort_request", {"rid": "x"}, headers=AUTH).status_code == 403


def test_only_admin_routes_need_a_key_if_only_the_admin_key_is_set() -> None:
    server = FakeServer(admin_api_key="admin-key")

    assert server.get("/v1/models").status_code == 200
    assert server.post("/flush_cache").status_code == 401


def test_keys_are_never_shown() -> None:
    server = FakeServer(api_key="secret-key", admin_api_key="admin-key")

    for path in ("/server_info", "/get_server_info", "/model_info", "/openapi.json"):
        text = server.get(path, headers=AUTH).text
        assert "secret-key" not in text and "admin-key" not in text


def test_bodies_above_the_limit_are_refused_announced_or_chunked() -> None:
    server = FakeServer(max_request_body_bytes=100)

    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(10):
            yield b" " * 50

    for content in (b" " * 101, chunks()):
        reply = server.call("POST", "/generate", content=content)
        assert reply.status_code == 413
        assert "100" in reply.json()["error"]["message"]
    assert server.post("/generate", {"text": "hi"}).status_code == 200


def test_a_clients_request_id_comes_back(server: FakeServer) -> None:
    given = server.post("/generate", {"text": "hi"}, headers={"X-Request-Id": "abc-1"})
    unfit = server.post("/generate", {"text": "hi"}, headers={"X-Request-Id": "a b"})

    assert given.headers["x-request-id"] == "abc-1"
    assert unfit.headers["x-request-id"] == unfit.json()["meta_info"]["id"]
    assert server.get("/nowhere").headers["x-request-id"]


def test_browsers_from_elsewhere_are_refused_unless_named() -> None:
    ask = {"Origin": "http://a.example", "Access-Control-Request-Method": "POST"}

    closed = FakeServer().call("OPTIONS", "/generate", headers=ask)
    named = FakeServer(api_key="secret-key", cors_allow_origins="http://a.example")
    opened = named.call("OPTIONS", "/generate", headers=ask)

    assert "access-control-allow-origin" not in closed.headers
    assert opened.headers["access-control-allow-origin"] == "http://a.example"


def test_openapi_describes_the_bodies(server: FakeServer) -> None:
    schema = server.get("/openapi.json").json()

    for path in POSTS:
        content = schema["paths"][path]["post"]["requestBody"]["content"]
        name = content["application/json"]["schema"]["$ref"].rpartition("/")[2]
        assert schema["components"]["schemas"][name]["type"] == "object"
    assert "temperature" in schema["components"]["schemas"]["ChatBody"]["properties"]


def test_wrong_preferred_sampling_is_told_at_start() -> None:
    with pytest.raises(ConfigError, match="temperature"):
        FakeServer(preferred_sampling_params='{"temperature": "hot"}')
