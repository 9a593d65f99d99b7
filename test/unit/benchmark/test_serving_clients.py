"""The streaming client and the worker protocol, against tiny stand-ins."""

from __future__ import annotations

import json
import sys
import textwrap
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from serving.answers import CaseTimeout, NotAvailable
from serving.cases import Workload
from serving.client import complete
from serving.worker_peer import WorkerPeer

USAGE = {
    "prompt_tokens": 5,
    "completion_tokens": 3,
    "prompt_tokens_details": {"cached_tokens": 4},
}


class StandIn(BaseHTTPRequestHandler):
    """Streams two texts and the usage, one event cut in the middle; refuses schemas."""

    bodies: list[dict[str, Any]] = []

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.bodies.append(body)
        if "response_format" in body:
            return self._send(400, [json.dumps({"error": {"message": "no schemas"}}).encode()])
        events = [{"choices": [{"text": text}]} for text in (" one", " two")]
        events.append({"choices": [], "usage": USAGE})
        stream = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"
        return self._send(200, [stream[:20].encode(), stream[20:].encode()])

    def _send(self, status: int, pieces: list[bytes]) -> None:
        self.send_response(status)
        self.end_headers()
        for piece in pieces:
            self.wfile.write(piece)
            self.wfile.flush()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def base_url() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), StandIn)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    StandIn.bodies = []
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_client_reads_text_counts_and_times_of_every_stream(base_url: str) -> None:
    result = complete(base_url, "m", Workload("C", ["x", "y"], 3, 5), 10)

    assert [one.text for one in result.answers] == [" one two"] * 2
    assert [(one.output_tokens, one.cached_tokens) for one in result.answers] == [(3, 4)] * 2
    assert all(0 < one.first_seconds <= one.last_seconds for one in result.answers)
    assert result.wall_seconds >= max(one.last_seconds for one in result.answers)


def test_client_asks_for_greedy_output_of_the_full_length(base_url: str) -> None:
    complete(base_url, "m", Workload("A", ["x"], 3, 5), 10, {"cache_prompt": True})

    [body] = StandIn.bodies
    wanted = {"prompt": "x", "max_tokens": 3, "temperature": 0, "ignore_eos": True}
    assert wanted.items() <= body.items()
    assert body["cache_prompt"] is True


def test_refused_schema_is_reported_as_not_available(base_url: str) -> None:
    workload = Workload("E", ["x"], 3, None, schema={"type": "object"})

    with pytest.raises(NotAvailable, match="400: no schemas"):
        complete(base_url, "m", workload, 10)


WORKER = """
    import json, sys, time
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        question = json.loads(line)
        if question["prompts"] == ["sleep"]:
            time.sleep(60)
        if question["schema"]:
            print(json.dumps({"not_available": "no schemas"}), flush=True)
            continue
        answer = {"first_seconds": 0.1, "last_seconds": 0.2, "output_tokens": 3,
                  "prompt_tokens": None, "cached_tokens": None, "text": "x"}
        reply = {"wall_seconds": 0.25, "answers": [answer] * len(question["prompts"])}
        print(json.dumps(reply), flush=True)
"""


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[WorkerPeer]:
    script = tmp_path / "worker.py"
    script.write_text(textwrap.dedent(WORKER), encoding="utf-8")
    peer = WorkerPeer([sys.executable, "-P", str(script)], {}, 60)
    yield peer
    peer.stop()


def test_worker_answers_workload_after_workload(worker: WorkerPeer) -> None:
    for prompts in (["a"], ["b", "c"]):
        result = worker.run(Workload("C", prompts, 3, 1), 10)

        assert result.wall_seconds == 0.25
        assert [one.output_tokens for one in result.answers] == [3] * len(prompts)


def test_worker_may_refuse_a_schema(worker: WorkerPeer) -> None:
    with pytest.raises(NotAvailable, match="no schemas"):
        worker.run(Workload("E", ["a"], 3, None, schema={"type": "object"}), 10)


def test_worker_that_takes_too_long_is_cut_off(worker: WorkerPeer) -> None:
    with pytest.raises(CaseTimeout, match=r"over 0\.05 s"):
        worker.run(Workload("A", ["sleep"], 3, 1), 0.05)


def test_worker_that_dies_shows_its_last_words(tmp_path: Path) -> None:
    script = tmp_path / "worker.py"
    script.write_text("raise SystemExit('no such model')", encoding="utf-8")

    with pytest.raises(RuntimeError, match="no such model"):
        WorkerPeer([sys.executable, "-P", str(script)], {}, 60)
