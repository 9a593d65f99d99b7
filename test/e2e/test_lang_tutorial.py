"""The tutorial's code runs as it stands, in one file, against a server with the bundled model."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from support.server import Server

TUTORIAL = Path(__file__).parents[2] / "docs" / "tutorial.md"
ADDRESS = "http://127.0.0.1:30000"


def test_the_tutorials_code_runs_and_prints_what_the_text_says(
    server: Server, tmp_path: Path
) -> None:
    blocks = re.findall(r"```python\n(.*?)```", TUTORIAL.read_text(), re.DOTALL)
    code = "\n".join(blocks)
    assert code.count(ADDRESS) == 1
    program = tmp_path / "tutorial.py"
    program.write_text(code.replace(ADDRESS, server.base_url))

    done = subprocess.run(
        [sys.executable, str(program)], capture_output=True, text=True, timeout=150
    )

    assert done.returncode == 0, done.stderr
    assert "The capital of France is Paris. It has a population of" in done.stdout
    assert "{'type': 'stop', 'matched': '.'}" in done.stdout
    assert re.search(r"^(found|not found)$", done.stdout, re.MULTILINE)
    assert "'role': 'assistant', 'content': 'Well, " in done.stdout
    assert "top_p" in done.stdout  # the refusal that the text promises
    assert "3/3" in done.stderr  # the bar
