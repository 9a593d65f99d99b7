"""Servers that the end-to-end tests share: each starts once, when the first test asks for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.server import Server, start_server


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
