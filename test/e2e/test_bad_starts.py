"""Starts that cannot be: one line says what is wrong, and no traceback."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from runtime.srt.loading.resolve import resolve_model


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A folder of the bundled model whose JSON files may be changed."""
    for file in resolve_model("smollm2-135m-instruct").iterdir():
        if file.suffix == ".json":
            (tmp_path / file.name).write_bytes(file.read_bytes())
        else:
            (tmp_path / file.name).symlink_to(file)
    return tmp_path


def change(file: Path, **fields: Any) -> None:
    values = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps({**values, **fields}))


def start(*flags: str) -> tuple[int, str]:
    """Start a server that must fail; return its status and the one line that says why."""
    command = [sys.executable, "-m", "runtime.launch_server", "--port", "0", *flags]
    ended = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60
    )
    log = ended.stdout + ended.stderr
    assert "Traceback" not in log, log
    told = [line for line in log.splitlines() if "rror" in line or "ERROR" in line]
    assert len(told) == 1, log
    return ended.returncode, told[0]


# One start for each place that refuses; its other refusals are those of the unit tests.
@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        ("--drain-timeout-seconds nan", "--drain-timeout-seconds is nan; it must be from 0 to"),
        ("--port many", "argument --port: invalid int value: 'many'"),
        ("--no-such-flag", "unrecognized arguments: --no-such-flag"),
    ],
)
def test_a_wrong_flag_is_told_in_one_line(flags: str, problem: str) -> None:
    status, told = start(*flags.split())

    assert status == 2
    assert problem in told


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        (
            {"num_hidden_layers": 10**9},
            "field num_hidden_layers: it is 1000000000; it must be from",
        ),
        (
            {"intermediate_size": 2**20, "num_hidden_layers": 1024},
            "free memory; weights and",
        ),
        ({"num_hidden_layers": 31}, "model.layers.30"),
    ],
)
def test_an_absurd_model_is_told_in_one_line(
    model: Path, fields: dict[str, Any], problem: str
) -> None:
    change(model / "config.json", **fields)

    status, told = start("--model-path", str(model))

    assert status == 1
    assert problem in told


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"top_p": 7}, "field top_p is 7.0; it must be in (0, 1]"),
        ({"eos_token_id": -4}, "field eos_token_id: -4 is not a token id"),
    ],
)
def test_a_wrong_generation_config_is_told_in_one_line(
    model: Path, fields: dict[str, Any], problem: str
) -> None:
    change(model / "generation_config.json", **fields)

    status, told = start("--model-path", str(model))

    assert status == 1
    assert f"{model / 'generation_config.json'}: {problem}" in told


def test_a_file_that_is_no_chat_template_is_told_in_one_line(model: Path) -> None:
    status, told = start("--chat-template", str(model / "config.json"))

    assert status == 1
    assert f"--chat-template names '{model / 'config.json'}', which is no chat template" in told
