"""Tenants: keys of their own, and requests that carry whose quota they count against."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.fake_engine import FakeServer

from runtime.srt.errors import ConfigError
from runtime.srt.server_args import ServerArgs

TENANTS = [
    {"name": "a", "api_key": "key-of-a", "tokens_per_minute": 600},
    {"name": "b", "api_key": "key-of-b"},
]
BODY = {"text": "hi", "sampling_params": {"max_new_tokens": 2}}


def tenants_file(folder: Path, content: Any) -> str:
    path = folder / "tenants.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return str(path)


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


@pytest.fixture
def server(tmp_path: Path) -> FakeServer:
    path = tenants_file(tmp_path, {"tenants": TENANTS})
    return FakeServer(tenants_file=path, api_key="key-of-all")


@pytest.mark.parametrize(
    ("key", "tenant"), [("key-of-a", "a"), ("key-of-b", "b"), ("key-of-all", None)]
)
@pytest.mark.parametrize("path", ["/generate", "/v1/completions"])
def test_a_key_names_the_tenant_of_its_requests(
    server: FakeServer, key: str, tenant: str | None, path: str
) -> None:
    body = BODY if path == "/generate" else {"prompt": "hi", "max_tokens": 2}
    reply = server.call("POST", path, json=body, headers=bearer(key))

    assert reply.status_code == 200
    assert [one.tenant for one in server.engine.requests] == [tenant]


def test_one_tenants_key_does_not_stick_to_the_next_request(server: FakeServer) -> None:
    for key in ("key-of-a", "key-of-all", "key-of-b"):
        server.call("POST", "/generate", json=BODY, headers=bearer(key))

    assert [one.tenant for one in server.engine.requests] == ["a", None, "b"]


@pytest.mark.parametrize("key", ["", "key-of-c", "key-of-", "a"])
def test_other_keys_are_refused(server: FakeServer, key: str) -> None:
    assert server.call("POST", "/generate", json=BODY, headers=bearer(key)).status_code == 401


def test_tenants_need_a_key_also_where_there_is_no_ordinary_one(tmp_path: Path) -> None:
    server = FakeServer(tenants_file=tenants_file(tmp_path, {"tenants": TENANTS}))

    assert server.call("POST", "/generate", json=BODY).status_code == 401
    reply = server.call("POST", "/generate", json=BODY, headers=bearer("key-of-b"))
    assert reply.status_code == 200


@pytest.mark.parametrize("path", ["/flush_cache", "/abort_request", "/pin_prefix", "/unpin_prefix"])
def test_a_tenant_may_not_touch_what_is_not_its_own(server: FakeServer, path: str) -> None:
    reply = server.call("POST", path, json={}, headers=bearer("key-of-a"))
    ordinary = server.call("POST", path, json={}, headers=bearer("key-of-all"))

    assert reply.status_code == 403
    assert ordinary.status_code != 403


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[]",
        {"tenants": [{"name": "a"}]},
        {"tenants": []},
        {"tenants": [{"name": "a", "api_key": " secret"}]},
        {"tenants": [{"name": "", "api_key": "secret"}]},
        {"tenants": [{"name": "a", "api_key": ""}]},
        {"tenants": [{"name": "a", "api_key": "secret", "tokens_per_minute": 0}]},
        {"tenants": [{"name": "a", "api_key": "secret", "tokens_per_minute": "many"}]},
        {"tenants": [{"name": "a", "api_key": "secret", "limit": 3}]},
        {"tenants": [{"name": "a", "api_key": "secret"}, {"name": "a", "api_key": "other"}]},
        {"tenants": [{"name": "a", "api_key": "secret"}, {"name": "b", "api_key": "secret"}]},
    ],
)
def test_a_wrong_file_is_told_at_the_start_without_its_keys(tmp_path: Path, content: Any) -> None:
    with pytest.raises(ConfigError, match="--tenants-file") as caught:
        ServerArgs(tenants_file=tenants_file(tmp_path, content))

    assert "secret" not in caught.value.message


@pytest.mark.parametrize("flag", ["api_key", "admin_api_key"])
def test_a_tenants_key_opens_nothing_else(tmp_path: Path, flag: str) -> None:
    path = tenants_file(tmp_path, {"tenants": TENANTS})

    with pytest.raises(ConfigError, match="--tenants-file"):
        ServerArgs(tenants_file=path, **{flag: "key-of-a"})


def test_a_missing_file_is_told_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--tenants-file"):
        ServerArgs(tenants_file=str(tmp_path / "none.json"))


@pytest.mark.parametrize("value", [0, -1, 1e9, "soon", True])
def test_a_wrong_timeout_is_a_400_that_names_it(value: Any) -> None:
    server = FakeServer()
    reply = server.call("POST", "/generate", json={**BODY, "timeout_seconds": value})

    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == "timeout_seconds"


@pytest.mark.parametrize(
    ("limit", "asked", "expected"), [(None, 5, 5.0), (10.0, None, 10.0), (10.0, 5, 5.0)]
)
def test_the_deadline_is_the_nearer_of_the_servers_and_the_requests(
    limit: float | None, asked: float | None, expected: float
) -> None:
    server = FakeServer(request_timeout_seconds=limit)
    fields = {} if asked is None else {"timeout_seconds": asked}
    server.call("POST", "/v1/completions", json={"prompt": "a", "max_tokens": 2, **fields})
    (request,) = server.engine.requests

    assert request.deadline_seconds is not None
    assert request.deadline_seconds - request.arrival_seconds == pytest.approx(expected)
