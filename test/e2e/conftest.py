"""Servers and the reference that the end-to-end tests share: each starts when first asked for."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from support.api_client import ApiClient
from support.reference import Reference
from support.server import Server, start_server

# Threads that spin while they wait for each other stall when the cores are shared, as test machines
# are. Read by OpenMP when torch is loaded: here, and in the servers, which inherit it.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

API_KEY = "sk-ordinary-1f0e"
ADMIN_API_KEY = "sk-admin-77aa"
TINY_POOL_TOKENS = 640


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """The bundled model as users get it: bfloat16."""
    with start_server() as running:
        yield running


@pytest.fixture(scope="session")
def server_f32() -> Iterator[Server]:
    """The bundled model in float32, for comparison with a reference token by token."""
    with start_server("--dtype", "float32") as running:
        yield running


@pytest.fixture(scope="session")
def tiny_pool_server() -> Iterator[Server]:
    """float32 and a KV pool that a handful of requests outgrow."""
    flags = ("--dtype", "float32", "--max-total-tokens", str(TINY_POOL_TOKENS))
    with start_server(*flags, "--skip-server-warmup") as running:
        yield running


@pytest.fixture(scope="session")
def guarded_server() -> Iterator[Server]:
    """Keys for clients and operators, one request at a time, two more waiting, short bodies."""
    limits = ("--max-running-requests", "1", "--max-queued-requests", "2")
    keys = ("--api-key", API_KEY, "--admin-api-key", ADMIN_API_KEY)
    size = ("--max-request-body-bytes", "20000")
    with start_server(*limits, *keys, *size, "--skip-server-warmup") as running:
        yield running


@pytest.fixture
def api(server: Server) -> Iterator[ApiClient]:
    """A client of the bfloat16 server, which must be idle and exact in the end."""
    yield from _client(server)


@pytest.fixture
def api_f32(server_f32: Server) -> Iterator[ApiClient]:
    """A client of the float32 server, which must be idle and exact in the end."""
    yield from _client(server_f32)


@pytest.fixture
def tiny_pool_api(tiny_pool_server: Server) -> Iterator[ApiClient]:
    """A client of the server with a tiny pool, which must be idle and exact in the end."""
    yield from _client(tiny_pool_server)


@pytest.fixture(scope="session")
def reference() -> Reference:
    """The same weights in transformers, in float32."""
    return Reference.of_bundled_model()


def _client(server: Server) -> Iterator[ApiClient]:
    with ApiClient(server.base_url) as client:
        yield client
        client.wait_until_idle()
