"""Start a real server for a test, and end it with the test.

The server is a child process in a session of its own, so that ending it ends its children too. Its
log goes to a temporary file, which also shows the port: servers listen on a free one.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

READY_LINE = re.compile(r"ready: (http://127\.0\.0\.1:(\d+))")
SMALL_POOL_TOKENS = 16384
POLL_SECONDS = 0.1
STOP_TIMEOUT_SECONDS = 20.0
PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)  # loaded here: little is safe between fork and exec


class Server:
    """A running server. As a context manager it stops at the end of the block."""

    def __init__(self, process: subprocess.Popen[bytes], log_path: Path) -> None:
        self.process = process
        self.base_url = ""
        self.port = 0
        self._log_path = log_path
        self._last_log = ""

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def log(self) -> str:
        """Everything the server's processes have written so far, also after stop."""
        if self._log_path.exists():
            self._last_log = self._log_path.read_text(encoding="utf-8", errors="replace")
        return self._last_log

    def stop(self) -> None:
        """End the server with all its children: politely, then by force. Safe to call twice."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(STOP_TIMEOUT_SECONDS)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)  # its session: start_new_session below
        self.process.wait()
        self.log()
        self._log_path.unlink(missing_ok=True)

    def wait_until_ready(self, timeout_seconds: float) -> None:
        """Return once /health answers 200; raises RuntimeError with the log if it never does."""
        deadline = time.monotonic() + timeout_seconds
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise RuntimeError(
                    f"server ended with status {self.process.returncode} before it was ready:\n"
                    f"{self.log()}"
                )
            if self._is_ready():
                return
            time.sleep(POLL_SECONDS)
        raise RuntimeError(f"server not ready after {timeout_seconds} seconds:\n{self.log()}")

    def _is_ready(self) -> bool:
        found = READY_LINE.search(self.log())
        if found is None:
            return False
        self.base_url, self.port = found[1], int(found[2])
        try:
            with urllib.request.urlopen(self.base_url + "/health", timeout=5) as response:
                return bool(response.status == 200)
        except (urllib.error.URLError, TimeoutError, ConnectionError):
            return False


def start_server(
    *flags: str, env: Mapping[str, str] | None = None, timeout: float = 120.0
) -> Server:
    """Start `python -m runtime.launch_server` with flags and return it ready to answer.

    It listens on a free port of 127.0.0.1 and has a small KV pool unless flags name another. env
    adds to the environment; timeout is in seconds. The caller stops it (use `with`).
    """
    defaults = ["--host", "127.0.0.1", "--port", "0"]
    if "--max-total-tokens" not in flags and "--mem-fraction-static" not in flags:
        defaults += ["--max-total-tokens", str(SMALL_POOL_TOKENS)]
    handle, name = tempfile.mkstemp(prefix="server-", suffix=".log")
    with os.fdopen(handle, "wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "runtime.launch_server", *defaults, *flags],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(env or {})},
            start_new_session=True,
            preexec_fn=_die_with_parent,
        )
    server = Server(process, Path(name))
    try:
        server.wait_until_ready(timeout)
    except BaseException:
        server.stop()
        raise
    return server


def _die_with_parent() -> None:
    """A test run that is killed leaves no server behind, although each has its own session."""
    _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
