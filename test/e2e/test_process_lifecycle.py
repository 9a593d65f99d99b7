"""Start, drain and death of a server's processes: nothing hangs, nothing is left behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import psutil
import pytest
from support.server import Server, start_server

GONE_WITHIN_SECONDS = 5.0
# One thread: on a busy machine two would mostly wait for each other.
FLAGS = ("--skip-server-warmup", "--threads", "1")
LONG = {"max_new_tokens": 2000, "ignore_eos": True, "temperature": 0}


@pytest.fixture
def own_server() -> Iterator[Server]:
    """A server that the test may harm."""
    with start_server(*FLAGS) as running:
        yield running


def _roles(server: Server) -> dict[str, psutil.Process]:
    children = psutil.Process(server.process.pid).children()
    names = {name: one for one in children for name in one.cmdline() if name.isidentifier()}
    assert names.keys() == {"scheduler", "detokenizer"}
    return names


def _wait_until_gone(processes: list[psutil.Process], timeout_seconds: float) -> None:
    _, alive = psutil.wait_procs(processes, timeout=timeout_seconds)
    assert not alive, f"still alive: {alive}"


def _stream_to_end(server: Server, started: threading.Event) -> str:
    """Read a long stream; return all of it, or what the client raised."""
    body = {"text": "Once upon a time", "sampling_params": LONG, "stream": True}
    received = ""
    try:
        with httpx.stream("POST", server.base_url + "/generate", json=body, timeout=60) as answer:
            for piece in answer.iter_text():
                received += piece
                started.set()
    except httpx.HTTPError as error:
        received += f"client saw {type(error).__name__}"
    finally:
        started.set()
    return received


@pytest.mark.parametrize("victim", ["scheduler", "detokenizer"])
def test_death_of_a_child_ends_requests_with_an_error_and_the_server_with_a_failure(
    own_server: Server, victim: str
) -> None:
    roles = _roles(own_server)
    body = {"text": "Once upon a time", "sampling_params": LONG}
    url = own_server.base_url + "/generate"
    started = threading.Event()
    with ThreadPoolExecutor() as threads:
        stream = threads.submit(_stream_to_end, own_server, started)
        whole = threads.submit(httpx.post, url, json=body, timeout=60)
        assert started.wait(30)
        time.sleep(0.3)  # the second request is on its way too

        roles[victim].kill()
        _wait_until_gone(list(roles.values()), GONE_WITHIN_SECONDS)
        exit_code = own_server.process.wait(GONE_WITHIN_SECONDS)

        assert exit_code == 1
        assert '"error"' in stream.result() or "client saw" in stream.result()
        assert "[DONE]" not in stream.result() or '"error"' in stream.result()
        assert whole.result().status_code == 500
        assert victim in whole.result().json()["error"]["message"]
    assert f"{victim} process was killed by SIGKILL" in own_server.log()


def test_children_vanish_when_the_main_process_is_killed(own_server: Server) -> None:
    roles = _roles(own_server)

    own_server.process.kill()

    _wait_until_gone(list(roles.values()), GONE_WITHIN_SECONDS)


def test_sigterm_lets_open_requests_finish_and_refuses_new_ones(own_server: Server) -> None:
    roles = _roles(own_server)
    sampling = {"max_new_tokens": 60, "ignore_eos": True, "temperature": 0}
    url = own_server.base_url + "/generate"

    def one(index: int) -> httpx.Response:
        body = {"text": f"Story number {index}:", "sampling_params": sampling}
        return httpx.post(url, json=body, timeout=60)

    with ThreadPoolExecutor(8) as threads:
        answers = [threads.submit(one, index) for index in range(8)]
        _wait_until_running(own_server, 8)
        own_server.process.send_signal(signal.SIGTERM)
        _wait_for_health(own_server, 503)
        refused = one(99)

        for answer in answers:
            assert answer.result().status_code == 200
            assert answer.result().json()["meta_info"]["completion_tokens"] == 60
    assert refused.status_code == 503
    assert int(refused.headers["Retry-After"]) > 0
    assert own_server.process.wait(10) == 0
    _wait_until_gone(list(roles.values()), GONE_WITHIN_SECONDS)


def test_ctrl_c_to_the_whole_group_drains_like_sigterm(own_server: Server) -> None:
    started = threading.Event()
    body = {"text": "Hello", "sampling_params": {"max_new_tokens": 40, "ignore_eos": True}}
    with ThreadPoolExecutor() as threads:
        answer = threads.submit(
            httpx.post, own_server.base_url + "/generate", json=body, timeout=60
        )
        _wait_until_running(own_server, 1)
        os.killpg(own_server.process.pid, signal.SIGINT)
        started.set()

        assert answer.result().json()["meta_info"]["completion_tokens"] == 40
    assert own_server.process.wait(10) == 0


def test_a_second_signal_ends_at_once(own_server: Server) -> None:
    roles = _roles(own_server)
    started = threading.Event()
    with ThreadPoolExecutor() as threads:
        stream = threads.submit(_stream_to_end, own_server, started)
        assert started.wait(30)
        own_server.process.send_signal(signal.SIGTERM)
        _wait_for_health(own_server, 503)
        own_server.process.send_signal(signal.SIGTERM)

        assert own_server.process.wait(10) != 0  # the drain alone would take up to 60
        stream.result()
    _wait_until_gone(list(roles.values()), GONE_WITHIN_SECONDS)


def test_what_takes_longer_than_the_drain_is_told_that_the_server_ends() -> None:
    with start_server(*FLAGS, "--drain-timeout-seconds", "1") as server:
        started = threading.Event()
        with ThreadPoolExecutor() as threads:
            stream = threads.submit(_stream_to_end, server, started)
            assert started.wait(30)
            server.process.send_signal(signal.SIGTERM)

            assert server.process.wait(10) == 0
            assert "the server is shutting down" in stream.result()


def test_a_stopped_scheduler_holds_neither_routes_nor_the_drain_up() -> None:
    with start_server(*FLAGS, "--drain-timeout-seconds", "1") as server:
        scheduler = _roles(server)["scheduler"]
        started = threading.Event()
        with ThreadPoolExecutor() as threads:
            stream = threads.submit(_stream_to_end, server, started)
            assert started.wait(30)
            scheduler.send_signal(signal.SIGSTOP)
            for path, status in (("/kv_stats", 503), ("/server_info", 503), ("/metrics", 200)):
                asked = time.monotonic()
                assert httpx.get(server.base_url + path, timeout=10).status_code == status
                assert time.monotonic() - asked < 4, path

            server.process.send_signal(signal.SIGTERM)

            assert server.process.wait(15) == 0
            assert "its engine does not answer" in stream.result()
        _wait_until_gone([scheduler], GONE_WITHIN_SECONDS)
        assert "Traceback" not in server.log()
        assert server.log().count("ERROR") == 1, server.log()


def test_clients_that_read_nothing_do_not_hold_the_drain_up() -> None:
    with start_server(*FLAGS, "--drain-timeout-seconds", "1") as server:
        body = {
            "text": "a",
            "sampling_params": {"max_new_tokens": 600, "ignore_eos": True},
            "stream": True,
            "return_logprob": True,
            "top_logprobs_num": 128,
        }
        text = json.dumps(body).encode()
        head = f"POST /generate HTTP/1.1\r\nhost: a\r\ncontent-length: {len(text)}\r\n\r\n"
        with socket.create_connection(("127.0.0.1", server.port)) as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.sendall(head.encode() + text)
            _wait_until_running(server, 1)
            time.sleep(1.0)  # its events fill what the system buffers
            server.process.send_signal(signal.SIGTERM)

            assert server.process.wait(15) == 0
        assert "Traceback" not in server.log()


def test_a_head_without_end_costs_no_memory(server: Server) -> None:
    process = psutil.Process(server.process.pid)
    before = process.memory_info().rss
    refused = b""
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        with contextlib.suppress(ConnectionError):
            connection.sendall(b"GET /health HTTP/1.1\r\nx: ")
            for _ in range(100):
                connection.sendall(b"a" * 1_000_000)
        with contextlib.suppress(ConnectionError):
            refused = connection.recv(4096)

    assert not refused or refused.startswith(b"HTTP/1.1 431 ")
    assert process.memory_info().rss - before < 20_000_000
    assert httpx.get(server.base_url + "/health").status_code == 200


def test_two_servers_started_at_once_both_answer() -> None:
    with contextlib.ExitStack() as stack, ThreadPoolExecutor() as threads:
        starting = [threads.submit(start_server, *FLAGS) for _ in range(2)]
        servers = [stack.enter_context(one.result()) for one in starting]

        bodies = [{"text": text, "sampling_params": {"max_new_tokens": 4}} for text in ("a", "b")]
        answers = [
            httpx.post(server.base_url + "/generate", json=body, timeout=60)
            for server, body in zip(servers, bodies, strict=True)
        ]

        assert [answer.status_code for answer in answers] == [200, 200]
        assert servers[0].port != servers[1].port


def test_a_busy_port_is_told_in_one_line_before_the_model_loads() -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]

        result = _run_to_failure("--port", str(port))

    assert f"port {port} on 127.0.0.1 is in use; choose another with --port" in result
    assert "loaded" not in result


def test_a_model_that_does_not_exist_is_told_in_one_line(tmp_path: Path) -> None:
    result = _run_to_failure("--port", "0", "--model-path", str(tmp_path / "nothing"))

    assert "nothing" in result
    assert "Traceback" not in result


def test_a_pool_that_cannot_be_is_told_in_one_line() -> None:
    result = _run_to_failure("--port", "0", "--max-total-tokens", str(10**9))

    assert "cannot start" in result
    assert "Traceback" not in result


def test_no_process_loads_torch_and_the_sockets_are_private(own_server: Server) -> None:
    roles = _roles(own_server)

    def maps(pid: int) -> str:
        return Path(f"/proc/{pid}/maps").read_text()

    assert "libtorch" not in maps(roles["scheduler"].pid)
    assert "libtorch" not in maps(roles["detokenizer"].pid)
    assert "libtorch" not in maps(own_server.process.pid)
    sockets = {
        Path(one.laddr)
        for one in roles["scheduler"].net_connections("unix")
        if str(one.laddr).startswith("/")
    }
    folders = {path.parent for path in sockets}
    assert len(folders) == 1
    folder = folders.pop()
    assert folder.stat().st_mode & 0o777 == 0o700
    own_server.stop()
    assert not folder.exists()


def _run_to_failure(*flags: str) -> str:
    """Start a server that must fail; return its log."""
    result = subprocess.run(
        [sys.executable, "-m", "runtime.launch_server", *flags],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert result.returncode not in (0, -signal.SIGKILL)
    return result.stdout + result.stderr


def _wait_until_running(server: Server, num_requests: int) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        metrics = httpx.get(server.base_url + "/metrics", timeout=10).text
        for line in metrics.splitlines():
            if (
                line.startswith("runtime:num_running_reqs")
                and float(line.split()[-1]) >= num_requests
            ):
                return
        time.sleep(0.02)
    raise AssertionError(f"never {num_requests} requests running")


def _wait_for_health(server: Server, status_code: int) -> None:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        if httpx.get(server.base_url + "/health", timeout=10).status_code == status_code:
            return
        time.sleep(0.02)
    raise AssertionError(f"/health never gave {status_code}")
