"""The simulator's clock and cost models."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from simulation.calibration import fit, read_calibration
from simulation.cost_model import CostModel, Roofline, StepLoad
from simulation.presets import DEVICES, MODELS, find_model
from simulation.virtual_clock import VirtualClock

LOAD = StepLoad(
    prefill_tokens=300, decode_rows=40, kv_tokens=60_000, attended_pairs=150_000, sampled_rows=41
)
FITTED = fit(
    np.array([[0, 1, 100, 5.0], [512, 0, 512, 40.0], [100, 8, 9_000, 16.0], [0, 64, 64_000, 21.0]])
)
ROOFLINES = [Roofline(model, device) for model in MODELS.values() for device in DEVICES.values()]


def test_the_clock_never_runs_backwards() -> None:
    clock = VirtualClock()

    clock.advance(1.5)
    clock.advance_to(1.0)
    assert clock() == 1.5
    clock.advance_to(4.0)
    clock.advance(0.0)
    assert clock() == 4.0
    with pytest.raises(AssertionError, match="backwards"):
        clock.advance(-0.1)


@pytest.mark.parametrize("cost", [*ROOFLINES, FITTED])
@pytest.mark.parametrize(
    "more",
    [
        {"prefill_tokens": 8_192},
        {"decode_rows": 256},
        {"kv_tokens": 900_000},
        {"attended_pairs": 1e9},
        {"sampled_rows": 4_000},
    ],
)
def test_more_work_never_takes_less_time(cost: CostModel, more: dict[str, int]) -> None:
    assert 0 < cost.seconds(LOAD) <= cost.seconds(replace(LOAD, **more))


def test_a_decode_step_of_llama_8b_on_an_h100_reads_its_weights_once() -> None:
    cost = Roofline(MODELS["llama-3-8b"], DEVICES["h100"])
    load = StepLoad(0, 1, 1, 1, 1)

    # 7.5e9 weights without the table of embeddings, 2 bytes each, at 85 % of 3.35 TB/s, and 1 ms.
    assert cost.seconds(load) == pytest.approx(15.0e9 / (0.85 * 3.35e12) + 1e-3, rel=0.01)


def test_a_long_prefill_costs_its_operations() -> None:
    cost = Roofline(MODELS["llama-3-8b"], DEVICES["h100"])
    tokens = 8_192
    load = StepLoad(tokens, 0, tokens, 0, 0)

    # 2 operations for each token and each of 6.98e9 weights of layers, at 60 % of 989 TFLOP/s.
    assert cost.seconds(load) == pytest.approx(2 * tokens * 6.98e9 / 593e12 + 1e-3, rel=0.01)


def test_more_devices_share_weights_and_pool() -> None:
    one, four = find_model("llama-3-8b", 1), find_model("llama-3-8b", 4)

    assert four.weight_bytes == one.weight_bytes / 4
    assert four.pool_tokens(DEVICES["h100"], 0.9) > 4 * one.pool_tokens(DEVICES["h100"], 0.9)
    with pytest.raises(ValueError, match="llama-3-70b"):
        find_model("unheard-of", None)


def test_a_fit_finds_the_line_that_the_samples_lie_on(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    loads = rng.integers(1, 2_000, (50, 3))
    samples = [[a, b, c, 3.0 + 0.05 * a + 0.2 * b + 0.001 * c] for a, b, c in loads.tolist()]
    file = tmp_path / "steps.json"
    file.write_text(json.dumps({"samples": samples}), encoding="utf-8")

    fitted = read_calibration(file)

    assert fitted.overhead_ms == pytest.approx(3.0)
    assert fitted.ms_per_prefill_token == pytest.approx(0.05)
    assert fitted.ms_per_decode_row == pytest.approx(0.2)
    assert fitted.ms_per_kv_token == pytest.approx(0.001)
    assert fitted.error.median_relative < 1e-6
    assert fitted.seconds(StepLoad(10, 5, 1_000, 0.0, 5)) == pytest.approx(5.5e-3)


def test_no_coefficient_of_a_fit_is_negative() -> None:
    # More decode rows went with less time: such a line would let work pay.
    samples = np.array([[0, rows, 100, 20.0 - rows] for rows in range(1, 12)], dtype=np.float64)

    fitted = fit(samples)

    assert fitted.ms_per_decode_row == 0
    assert fitted.error.median_relative > 0.05


@pytest.mark.parametrize(
    "content", ["[]", "{}", "[[1, 2, 3, 4], [1, 2, 3, 4], [1, 2, 3, 4], [1, 2, 3, 0]]", "[1,2,3,4]"]
)
def test_samples_that_cannot_be_fitted_are_refused(content: str, tmp_path: Path) -> None:
    file = tmp_path / "steps.json"
    file.write_text(content, encoding="utf-8")

    with pytest.raises(ValueError, match="steps.json"):
        read_calibration(file)
