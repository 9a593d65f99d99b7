"""The README's commands work as they are written, but for the address of the server."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.server import Server

REPOSITORY = Path(__file__).resolve().parents[2]
README = REPOSITORY / "README.md"
DOCUMENTED_ADDRESS = "http://127.0.0.1:30000"
RUN_TIMEOUT_SECONDS = 120


def test_the_curl_command_answers_a_chat_completion(server: Server) -> None:
    (command,) = [block for block in _blocks("bash") if block.startswith("curl")]

    done = _run(["bash", "-c", _at(server, command) + " --silent --show-error --fail-with-body"])

    answer = json.loads(done)
    assert answer["choices"][0]["message"]["content"].strip()
    assert answer["usage"]["completion_tokens"] <= 32


@pytest.mark.parametrize("index", range(len(re.findall(r"^```python$", README.read_text(), re.M))))
def test_a_python_program_prints_what_the_model_says(server: Server, index: int) -> None:
    program = _at(server, _blocks("python")[index])

    printed = _run([sys.executable, "-W", "error", "-c", program])

    assert printed.strip()


def test_make_targets_named_in_the_readme_exist() -> None:
    targets = sorted(set(re.findall(r"\bmake (\w+)", README.read_text(encoding="utf-8"))))

    assert targets == ["bench", "check", "serve", "test"]
    for target in targets:
        _run(["make", "--dry-run", "--directory", str(REPOSITORY), target])


def test_links_of_the_readme_lead_to_files() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", README.read_text(encoding="utf-8"))

    assert links
    assert [link for link in links if not (REPOSITORY / link).is_file()] == []


def _blocks(language: str) -> list[str]:
    """The fenced code blocks of the README in one language, in order."""
    fenced = rf"^```{language}\n(.*?)^```$"
    return [
        block.strip()
        for block in re.findall(fenced, README.read_text(encoding="utf-8"), re.M | re.S)
    ]


def _at(server: Server, text: str) -> str:
    assert DOCUMENTED_ADDRESS in text
    return text.replace(DOCUMENTED_ADDRESS, server.base_url)


def _run(command: list[str]) -> str:
    """Run command, which must succeed, and return what it printed."""
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=RUN_TIMEOUT_SECONDS, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
