"""Medians, ratios, goals, tables and shares of the machine's limits, from made-up records."""

from __future__ import annotations

import pytest
from serving.cases import Workload
from serving.goals import standings
from serving.records import Record
from serving.spread import Spread, ratio_of, spread_of
from serving.table import goal_table, main_table, render_tables
from serving.work import ModelShape, decode_bytes, total_flops

WEIGHTS = {"ours bf16": "bf16", "ours w8a8": "8-bit", "one": "bf16", "two": "bf16"}


def records(contestant: str, case: str, figure: str, *values: float) -> list[Record]:
    return [Record(contestant, i, case, {figure: value}) for i, value in enumerate(values, 1)]


def test_spread_is_the_median_with_its_range() -> None:
    assert spread_of([3.0, 1.0, 2.0]) == Spread(2.0, 1.0, 3.0, 3)
    assert spread_of([]) is None


def test_spread_of_one_round_says_so() -> None:
    assert str(Spread(25.61, 25.61, 25.61, 1)) == "25.6 (n=1)"
    assert str(Spread(519.4, 435.0, 526.0, 3)) == "519 [435-526]"


def test_ratio_says_how_many_times_better_for_both_directions() -> None:
    ours, theirs = Spread(10, 8, 20, 3), Spread(30, 24, 40, 3)

    lower = ratio_of(ours, theirs, lower_is_better=True)
    higher = ratio_of(theirs, ours, lower_is_better=False)

    assert (lower.median, lower.worst, lower.best) == (3.0, 1.2, 5.0)
    assert (higher.median, higher.worst, higher.best) == (3.0, 1.2, 5.0)


def test_goal_is_held_against_the_best_rival_with_the_same_weights() -> None:
    measured = [
        *records("ours bf16", "A", "ms_per_token", 16, 18, 17),
        *records("ours w8a8", "A", "ms_per_token", 1),
        *records("one", "A", "ms_per_token", 40),
        *records("two", "A", "ms_per_token", 34, 33, 35),
    ]

    one_stream = standings(measured, WEIGHTS)[0]

    assert one_stream.rival == "two"
    assert one_stream.ratio is not None and one_stream.ratio.median == pytest.approx(2.0)
    assert one_stream.is_reached is True


def test_goal_without_a_rival_is_unknown_not_reached() -> None:
    measured = records("ours bf16", "A", "ms_per_token", 16)

    assert standings(measured, WEIGHTS)[0].is_reached is None
    assert "not measured" in goal_table(measured, WEIGHTS)


def test_our_own_bf16_is_the_rival_where_a_goal_names_it() -> None:
    measured = [
        *records("ours bf16", "C", "output_tok_s", 900),
        *records("ours w8a8", "C", "output_tok_s", 1200),
        *records("one", "C", "output_tok_s", 5000),
    ]

    [standing] = [one for one in standings(measured, WEIGHTS) if "8-bit over" in one.goal.title][1:]

    assert standing.rival == "ours bf16"
    assert standing.ratio is not None and standing.ratio.median == pytest.approx(4 / 3)


def test_bounds_hold_against_our_own_figure() -> None:
    measured = [
        *records("ours bf16", "F", "first_answer_s", 2.9, 3.4, 2.8),
        *records("ours bf16", "A", "limit_share", 0.79),
    ]

    rows = goal_table(measured, WEIGHTS).splitlines()

    assert "| F first answer | 2.90 [2.80-3.40] s | - | - | at most 3 s | yes |" in rows
    assert any(
        row.startswith("| A one stream, bf16 | 0.79") and row.endswith("no |") for row in rows
    )
    assert any(row.startswith("| F memory | not measured") and row.endswith("- |") for row in rows)


def test_round_with_a_problem_counts_in_no_figure_and_is_listed() -> None:
    bad = Record("one", 2, "A", {"ms_per_token": 1.0}, "output of 3 tokens, 128 expected")
    measured = [*records("one", "A", "ms_per_token", 40), bad]

    text = render_tables(measured, WEIGHTS)

    assert "| one | 40.0 (n=1) |" in text
    assert "- one, case A, round 2: output of 3 tokens, 128 expected" in text


def test_main_table_leaves_out_columns_that_nobody_measured() -> None:
    table = main_table(records("one", "D", "wall_s", 4.9), ["one"])

    assert table.splitlines()[2:] == [
        "| contestant | D wall s |",
        "|---|---|",
        "| one | 4.90 (n=1) |",
    ]


def test_memory_is_the_peak_over_the_cases_of_each_start() -> None:
    measured = [
        Record("one", 1, "F", {"pss_mib": 500.0}),
        Record("one", 1, "C", {"pss_mib": 800.0}),
        Record("one", 2, "C", {"pss_mib": 600.0}),
    ]

    assert "700 [600-800]" in render_tables(measured, WEIGHTS)


SHAPE = ModelShape(
    hidden=4, intermediate=8, layers=2, heads=2, kv_heads=1, head_dim=2, vocabulary=10
)


def test_weights_follow_from_the_shape() -> None:
    # q 4x4, k and v 4x2, o 4x4, and three of 4x8; two layers.
    assert SHAPE.layer_weights == 2 * (16 + 8 + 8 + 16 + 96)
    assert SHAPE.head_weights == 40
    assert SHAPE.kv_bytes_per_token == 2 * 2 * 2 * 2


def test_decode_reads_the_weights_and_the_mean_context() -> None:
    workload = Workload("A", ["x"], 8, prompt_tokens=6)

    assert decode_bytes(SHAPE, workload, 1000) == 1000 + 10 * SHAPE.kv_bytes_per_token


def test_operations_of_a_cached_prefix_are_not_counted() -> None:
    whole = Workload("B", ["x"], 1, prompt_tokens=5)
    cached = Workload("D", ["x", "y"], 1, prompt_tokens=5, shared_prefix_tokens=3)
    heads = SHAPE.layers * SHAPE.heads * SHAPE.head_dim

    assert total_flops(SHAPE, whole) == 2 * 5 * 288 + 4 * (1 + 2 + 3 + 4 + 5) * heads + 2 * 40
    assert total_flops(SHAPE, cached) == 2 * (2 * 2 * 288 + 4 * (4 + 5) * heads + 2 * 40)
