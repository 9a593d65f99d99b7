"""Every example runs as its docstring says, on the bundled model."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
from support.server import Server

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))
# A pattern of what each prints; the model decides the words.
PRINTS = {
    "chat": r"system: .*\nuser: .*\nassistant: (.|\n)+user: .*\nassistant: ",
    "few_shot_batch": r"light:.*\nfast:.*\nold:.*\nhappy:.*\nfull:.*\nhard:.*",
    "json_extraction": r".+, -?\d+, .+",
    "offline_batch": r"house: (.|\n)+water: (.|\n)+bread: ",
    "parallel_tips": r"About sleep: .*\nAbout food: .*\nAbout exercise: .*\nIn short: ",
    "quickstart": r"city: Paris\nin Europe: (yes|no)\nscores: \[-",
    "select_classifier": r"(positive|negative) \[-.*\n(positive|negative) \[-",
    "self_consistency": r"answers: \[(-?\d+, ){4}-?\d+\]\nvote: -?\d+",
    "streaming": r"(.|\n)+\n\(\d+ tokens\)",
    "tool_calls": r"user What is 17 times 23\?\nassistant \[.*multiply.*\]\ntool \d+\n",
    "tool_loop": r"Question: What is 17 times 23\?\n(.|\n)*Answer:",
    "tree_search": r"Once upon a time a fox met a crane\..+\..+\.",
}


def _run(name: str, *arguments: str) -> str:
    path = next(one for one in EXAMPLES if one.stem == name)
    done = subprocess.run(
        [sys.executable, "-W", "error", str(path), *arguments],
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", sorted(PRINTS))
def test_an_example_prints_what_it_promises(name: str, server: Server) -> None:
    arguments = [] if name == "offline_batch" else [server.base_url]

    assert re.search(PRINTS[name], _run(name, *arguments))


def test_the_web_handler_streams_a_poem(server: Server, unused_port: int) -> None:
    path = next(one for one in EXAMPLES if one.stem == "web_handler")
    command = [sys.executable, str(path), server.base_url, str(unused_port)]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, env=dict(os.environ))
    try:
        answer = _get(f"http://127.0.0.1:{unused_port}/haiku?topic=snow")
    finally:
        process.terminate()
        process.wait(20)

    assert answer.status_code == 200
    assert answer.text


def test_every_example_is_short_and_says_how_to_run_it() -> None:
    assert {one.stem for one in EXAMPLES} == {*PRINTS, "web_handler"}
    for path in EXAMPLES:
        source = path.read_text()
        assert 15 <= len(source.splitlines()) <= 50, path.name
        assert f"python examples/{path.name}" in (ast.get_docstring(ast.parse(source)) or "")


def _get(url: str) -> httpx.Response:
    deadline = time.monotonic() + 60
    while True:
        try:
            return httpx.get(url, timeout=60)
        except httpx.ConnectError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


@pytest.fixture
def unused_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
