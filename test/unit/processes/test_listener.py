"""The listening socket: errors that say what to do, and the real port in its address."""

from __future__ import annotations

import pytest

from runtime.srt.errors import ConfigError
from runtime.srt.processes.listener import open_listener, url_of


def test_port_zero_takes_a_free_port_and_tells_it() -> None:
    with open_listener("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]

        assert port > 0
        assert url_of(listener) == f"http://127.0.0.1:{port}"


def test_a_busy_port_is_an_error_that_names_the_flag() -> None:
    with open_listener("127.0.0.1", 0) as first:
        port = first.getsockname()[1]

        with pytest.raises(ConfigError, match=f"port {port} on 127.0.0.1 is in use.*--port"):
            open_listener("127.0.0.1", port)


@pytest.mark.parametrize("host", ["203.0.113.7", "no such host"])
def test_an_address_of_another_machine_is_an_error_that_names_the_flag(host: str) -> None:
    with pytest.raises(ConfigError, match="--host"):
        open_listener(host, 0)
