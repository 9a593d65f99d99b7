"""Keys: what is open, what needs which key, and that no key is ever shown."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from support.keys import ADMIN_API_KEY, API_KEY
from support.server import Server

OPEN = ["/health", "/ready", "/health_generate", "/metrics"]
CLOSED = ["/v1/models", "/v1/models/default", "/model_info", "/get_model_info", "/server_info"]
CLOSED += ["/get_server_info", "/kv_stats", "/openapi.json"]
POSTS = ["/generate", "/v1/completions", "/v1/chat/completions", "/tokenize", "/v1/detokenize"]
ADMIN = ["/flush_cache", "/abort_request"]
BODY = {"text": "x", "prompt": "x", "tokens": [1], "rid": "nobody", "max_tokens": 1}
BODY["messages"] = [{"role": "user", "content": "x"}]
WRONG = ["wrong", API_KEY[:-1], API_KEY + "x", API_KEY.upper(), "é", "x" * 10_000]


@pytest.fixture(scope="module")
def http(guarded_server: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=guarded_server.base_url, timeout=120) as client:
        yield client


def _bearer(key: str) -> dict[str, bytes]:
    return {"Authorization": f"Bearer {key}".encode()}


@pytest.mark.parametrize("path", OPEN)
def test_probes_and_metrics_are_open(http: httpx.Client, path: str) -> None:
    assert http.get(path).status_code == 200
    assert http.get(path, headers=_bearer("wrong")).status_code == 200


@pytest.mark.parametrize("path", CLOSED)
def test_descriptions_need_the_key(http: httpx.Client, path: str) -> None:
    refused = http.get(path)

    assert refused.status_code == 401
    assert refused.headers["WWW-Authenticate"] == "Bearer"
    assert refused.json()["error"]["type"] == "authentication_error"
    assert http.get(path, headers=_bearer(API_KEY)).status_code in (200, 404)


@pytest.mark.parametrize("path", POSTS)
def test_work_needs_the_key(http: httpx.Client, path: str) -> None:
    assert http.post(path, json=BODY).status_code == 401
    for key in (API_KEY, ADMIN_API_KEY):
        assert http.post(path, json=BODY, headers=_bearer(key)).status_code == 200


@pytest.mark.parametrize("key", WRONG, ids=lambda key: ascii(key[:20]))
def test_a_key_that_is_nearly_right_is_wrong(http: httpx.Client, key: str) -> None:
    response = http.post("/v1/completions", json=BODY, headers=_bearer(key))

    assert response.status_code == 401
    assert key not in response.text


@pytest.mark.parametrize(
    "header", [API_KEY, f"Basic {API_KEY}", f"Bearer{API_KEY}", f"Bearer: {API_KEY}", "Bearer"]
)
def test_the_key_counts_as_a_bearer_token_only(http: httpx.Client, header: str) -> None:
    response = http.get("/v1/models", headers={"Authorization": header})

    assert response.status_code == 401


def test_the_schemes_name_may_be_in_any_case(http: httpx.Client) -> None:
    response = http.get("/v1/models", headers={"Authorization": f"bearer {API_KEY}"})

    assert response.status_code == 200


@pytest.mark.parametrize("path", ADMIN)
def test_operators_routes_need_the_operators_key(http: httpx.Client, path: str) -> None:
    assert http.post(path, json=BODY).status_code == 401
    assert http.post(path, json=BODY, headers=_bearer("wrong")).status_code == 401
    assert http.post(path, json=BODY, headers=_bearer(API_KEY)).status_code == 403
    assert http.post(path, json=BODY, headers=_bearer(ADMIN_API_KEY)).status_code == 200


def test_no_answer_and_no_log_line_shows_a_key(http: httpx.Client, guarded_server: Server) -> None:
    texts = [
        http.get(path, headers=_bearer(API_KEY)).text + str(http.get(path).headers)
        for path in [*OPEN, *CLOSED]
    ]
    texts.append(guarded_server.log())

    for text in texts:
        assert API_KEY not in text
        assert ADMIN_API_KEY not in text


def test_a_body_is_not_read_without_the_key(http: httpx.Client) -> None:
    assert http.post("/v1/completions", content=b"{" * 100_000).status_code == 401


@pytest.mark.parametrize("is_chunked", [False, True], ids=["announced", "chunked"])
def test_a_body_beyond_the_limit_is_refused(http: httpx.Client, is_chunked: bool) -> None:
    body = b'{"prompt": "' + b"x" * 40_000 + b'"}'

    response = http.post(
        "/v1/completions",
        content=iter([body[:10_000], body[10_000:]]) if is_chunked else body,
        headers=_bearer(API_KEY),
    )

    assert response.status_code == 413
    assert "--max-request-body-bytes" in response.json()["error"]["message"]
    assert http.get("/health").status_code == 200


def test_browsers_of_other_origins_get_no_permission(http: httpx.Client) -> None:
    headers = {"Origin": "http://elsewhere", "Access-Control-Request-Method": "POST"}

    preflight = http.options("/v1/completions", headers=headers)
    answer = http.get("/health", headers=headers)

    assert "access-control-allow-origin" not in preflight.headers
    assert "access-control-allow-origin" not in answer.headers
