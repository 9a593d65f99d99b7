"""A cost model fitted to measured steps.

ms = overhead + a * prefill tokens + b * decode rows + c * kv tokens, no coefficient below 0, by
least squares of the relative errors: steps of 1 ms count as much as steps of 1 s. kv tokens are
the contexts of all rows, new tokens included.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .cost_model import StepLoad

_KEYS = ("prefill_tokens", "decode_rows", "kv_tokens", "ms")
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class FitError:
    """How far the line is from the samples."""

    num_samples: int
    median_relative: float
    p90_relative: float
    rms_ms: float

    def __str__(self) -> str:
        return (
            f"{self.num_samples} samples, relative error median {self.median_relative:.1%}, "
            f"p90 {self.p90_relative:.1%}, root mean square {self.rms_ms:.3g} ms"
        )


@dataclass(frozen=True, slots=True)
class FittedCost:
    """Milliseconds of a step as a linear function of its load."""

    overhead_ms: float
    ms_per_prefill_token: float
    ms_per_decode_row: float
    ms_per_kv_token: float
    error: FitError

    def seconds(self, load: StepLoad) -> float:
        """Return the time of a step."""
        return 1e-3 * (
            self.overhead_ms
            + self.ms_per_prefill_token * load.prefill_tokens
            + self.ms_per_decode_row * load.decode_rows
            + self.ms_per_kv_token * load.kv_tokens
        )

    def __str__(self) -> str:
        return (
            f"{self.overhead_ms:.4g} ms + {self.ms_per_prefill_token:.4g} for each prompt token + "
            f"{self.ms_per_decode_row:.4g} for each decode row + "
            f"{self.ms_per_kv_token:.4g} for each KV token"
        )


def read_calibration(path: Path) -> FittedCost:
    """Fit the samples of a JSON file: a list, or an object with the list under "samples".

    A sample is [prefill tokens, decode rows, kv tokens, ms] or an object with the keys
    prefill_tokens, decode_rows, kv_tokens, ms. Raises ValueError for anything else, or OSError.
    """
    content = json.loads(path.read_text(encoding="utf-8"))
    samples = content.get("samples") if isinstance(content, dict) else content
    if not isinstance(samples, list) or len(samples) < len(_KEYS):
        raise ValueError(f"{path} does not hold a list of at least {len(_KEYS)} samples")
    return fit(np.array([_sample(sample, path) for sample in samples], dtype=np.float64))


def fit(samples: Floats) -> FittedCost:
    """Fit samples of [prefill tokens, decode rows, kv tokens, ms]."""
    measured = samples[:, 3]
    features = np.hstack([np.ones((len(samples), 1)), samples[:, :3]])
    coefficients = _least_squares_from_zero(features / measured[:, None])
    errors = features @ coefficients - measured
    relative = np.abs(errors) / measured
    error = FitError(
        len(samples),
        float(np.median(relative)),
        float(np.percentile(relative, 90)),
        float(np.sqrt(np.mean(errors**2))),
    )
    overhead, prefill, decode, kv = (float(value) for value in coefficients)
    return FittedCost(overhead, prefill, decode, kv, error)


def _least_squares_from_zero(scaled: Floats) -> Floats:
    """Coefficients of scaled @ x = 1, none below 0: the best over all choices of zero columns."""
    columns = scaled.shape[1]
    best, best_error = np.zeros(columns), float(len(scaled))
    for choice in range(1, 2**columns):
        used = [column for column in range(columns) if choice >> column & 1]
        found, *_ = np.linalg.lstsq(scaled[:, used], np.ones(len(scaled)), rcond=None)
        error = float(np.sum((scaled[:, used] @ found - 1) ** 2))
        if (found >= 0).all() and error < best_error - 1e-12:
            best, best_error = np.zeros(columns), error
            best[used] = found
    return best


def _sample(sample: Any, path: Path) -> list[float]:
    values = [sample.get(key) for key in _KEYS] if isinstance(sample, dict) else sample
    if not isinstance(values, list) or len(values) != len(_KEYS):
        raise ValueError(f"{path}: {sample!r} is not [{', '.join(_KEYS)}]")
    numbers = [float(value) for value in values if isinstance(value, int | float)]
    if len(numbers) != len(_KEYS) or min(numbers) < 0 or numbers[3] == 0:
        raise ValueError(f"{path}: {sample!r} holds a value that cannot be")
    return numbers
