"""benchmark/gpu_check.py as a user starts it, in the interpreter, and its table."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import gpu_check
import pytest
from gpu_check_parts.outcome import Outcome, Row
from gpu_check_parts.stand_ins import Struct
from gpu_check_parts.table import table, with_shares

SCRIPT = Path(gpu_check.__file__)
FACTS = {"device": "one"}


def test_interpreted_parts_run_to_their_end_and_are_written_down(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), "--interpret", "--parts", "sampling"]

    # From another folder, and with a place for results in the environment.
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, "OUT": "results"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert "every comparison held" in done.stdout
    report = json.loads((tmp_path / "results" / "report.json").read_text())
    (part,) = report["parts"]
    assert part["part"] == "sampling" and part["error"] is None
    assert [row["value"] for row in part["rows"]] == [None]  # nothing is timed
    assert (tmp_path / "results" / "table.txt").read_text().strip() in done.stdout


def test_without_a_gpu_it_says_how_to_run_in_small(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)

    status = gpu_check.main(["--out", str(tmp_path / "out")])

    assert status == 2
    assert "--interpret" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_an_unknown_part_is_refused_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        gpu_check.main(["--parts", "kernels,speed"])

    assert "no part 'speed'" in capsys.readouterr().err


def test_rates_are_set_against_the_measured_peak() -> None:
    peaks = Outcome("peaks", rows=[Row("memory bandwidth", 4.0, "TB/s")])
    decode = Row("decode", 9.0, "tokens/s", rate=3e12, peak="bandwidth", share_goal=0.8)
    speed = Outcome("llama8b", rows=[decode])

    parts = with_shares([peaks, speed])
    text = table([peaks, speed], parts, FACTS, [])

    assert parts[1]["rows"][0]["share"] == 0.75
    assert "75% of measured bandwidth, goal 80% MISSED" in text
    assert "every comparison held" in text


def test_wrong_cases_and_lost_parts_fail_the_run_and_are_shown() -> None:
    cases = [
        Row("a", 0.5, is_right=True, group="gate"),
        Row("b", 7.0, is_right=False, group="gate", note="width 9: 7 x tolerance"),
    ]
    outcomes = [Outcome("kernels", rows=cases), Outcome("equality", error="device lost")]

    text = table(outcomes, with_shares(outcomes), FACTS, ["flashinfer: not installed"])

    assert not any(one.is_right for one in outcomes)
    assert "1 of 2 right" in text and "WRONG width 9: 7 x tolerance" in text
    assert "ERROR device lost" in text and "flashinfer: not installed" in text
    assert "FAILED: kernels, equality" in text


def test_stand_in_structs_take_fields_as_the_real_ones_do() -> None:
    class Message(Struct, frozen=True, array_like=True, tag=True, kw_only=True):
        count: int
        names: tuple[str, ...] = ()

    message = Message(count=3)

    assert (message.count, message.names) == (3, ())
    assert message == Message(count=3, names=())
    with pytest.raises(AttributeError):
        message.count = 4  # type: ignore[misc]
