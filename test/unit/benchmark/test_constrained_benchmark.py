"""benchmark/constrained.py in small, without a server: its figures, and what it sends to one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from constrained import main
from constrained_bench.figures import Section
from constrained_bench.hostile_inputs import body_of, hostile_fields
from constrained_bench.neighbours import Gap, split_gaps


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, dict[str, float]]]:
    """The figures of each section by its name, of a quick run whose suites are absent."""
    capture = pytest.MonkeyPatch()
    lines: list[str] = []
    capture.setattr("builtins.print", lambda *parts, **_: lines.append(str(parts[0])))
    absent = str(tmp_path_factory.mktemp("no_suites"))
    arguments = ["--quick", "--json", "--parts", "compile,tokens,jumps,rows,answers"]
    try:
        assert main([*arguments, "--data", absent]) == 0
    finally:
        capture.undo()
    found = json.loads(lines[0])
    assert any("maskbench" in line for line in found["left_out"])
    return {
        name.split(";")[0]: {key: one["value"] for key, one in section["figures"].items()}
        for name, section in found["sections"].items()
    }


def test_every_own_schema_is_served_and_its_values_are_walked(
    report: dict[str, dict[str, float]],
) -> None:
    assert report["compile"]["schemas served"] == report["compile"]["schemas"] > 0
    assert report["tokens"]["valid values not written by any walk"] == 0
    assert report["tokens"]["mask fill p50"] > 0


def test_jumps_are_the_tokenizers_own_tokens_and_more_without_whitespace(
    report: dict[str, dict[str, float]],
) -> None:
    bounded, compact = (report[f"jumps, whitespace {one}"] for one in ("bounded", "compact"))

    assert bounded["jumps that differ from the tokenizer's"] == 0
    assert compact["jumps that differ from the tokenizer's"] == 0
    shares = [one["share of tokens computed by jump"] for one in (bounded, compact)]
    assert 0 < shares[0] < shares[1] < 1


def test_random_answers_end_complete_within_their_budget(
    report: dict[str, dict[str, float]],
) -> None:
    short = report["random answers of 200 tokens"]

    assert short["answers"] > 0
    assert short["share of answers that are complete"] == 1
    assert short["tokens of a completion instead of the drawn"] > 0  # random text needs the close


def test_rows_are_timed_with_and_without_a_grammar(report: dict[str, dict[str, float]]) -> None:
    rows = report["64 rows"]

    assert rows["fill and greedy draw p50"] >= rows["fill p50"] > 0
    assert rows["draw: drawn, no grammar p50"] > 0


def test_a_figure_says_whether_its_reach_is_met() -> None:
    section = Section("one", "about")

    section.add("low", 3.0, "ms", at_most=2.0)
    section.add("high", 0.5, "", at_least=0.4)

    assert [figure.is_reached for figure in section.figures] == [False, True]
    assert "MISSED" in section.as_text()


def test_gaps_are_told_apart_by_what_ran_meanwhile() -> None:
    gaps = [Gap(0.0, 0.01), Gap(0.99, 1.02), Gap(1.02, 1.05), Gap(3.0, 3.04)]

    alone, beside = split_gaps(gaps, [(1.0, 1.03)])

    assert [round(one) for one in alone] == [10, 40]
    assert [round(one) for one in beside] == [30, 30]


@pytest.mark.parametrize("name", hostile_fields(0.02))
def test_a_hostile_input_is_sent_as_another_grammar_each_time(name: str) -> None:
    bodies = [body_of(hostile_fields(0.02)[name], number, {"model": "m"}) for number in (0, 1)]

    first, second = map(json.loads, bodies)

    assert first["model"] == "m"
    assert first != second


def test_nesting_beyond_the_json_writers_bound_is_sent_whole() -> None:
    body = body_of(hostile_fields()["nesting 3,000"], 0, {"model": "m"})

    assert body.count(b'"properties":{"a":') == 3_000
    assert body.count(b"{") == body.count(b"}")


def test_unknown_part_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        main(["--parts", "tokens,nothing", "--data", str(tmp_path)])

    assert "nothing" in capsys.readouterr().err
