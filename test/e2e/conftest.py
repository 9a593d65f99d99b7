"""Servers and the reference that the end-to-end tests share: each starts when first asked for."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from support.api_client import ApiClient
from support.keys import ADMIN_API_KEY, API_KEY
from support.server import Server, start_server

if TYPE_CHECKING:
    from support.reference import Reference

# Threads that spin while they wait for each other stall when the cores are shared, as test machines
# are. Read by OpenMP when torch is loaded, which is later: in the servers, and for the reference.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

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


@pytest.fixture
def guarded_api(guarded_server: Server) -> Iterator[ApiClient]:
    """A client of the guarded server with the key that opens all routes."""
    yield from _client(guarded_server, ADMIN_API_KEY)


@pytest.fixture(scope="session")
def reference() -> Reference:
    """The same weights in transformers, in float32."""
    from support.reference import Reference

    return Reference.of_bundled_model()


def _client(server: Server, api_key: str | None = None) -> Iterator[ApiClient]:
    with ApiClient(server.base_url, api_key) as client:
        yield client
        client.wait_until_idle()
