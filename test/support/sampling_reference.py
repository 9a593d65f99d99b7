"""What sampling parameters mean, in float64 and in so many words."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from runtime.srt.sampling_params import SamplingParams


def probabilities(
    logits: npt.NDArray[np.float32], params: SamplingParams
) -> npt.NDArray[np.float64]:
    """The distribution that params ask for, by definition."""
    values = logits.astype(np.float64) / params.temperature
    p = np.exp(values - values.max())
    p /= p.sum()
    order = np.argsort(-p, kind="stable")
    if params.top_k is not None:
        p[order[params.top_k :]] = 0.0
        p /= p.sum()
    before = np.cumsum(p[order]) - p[order]
    p[order[before >= params.top_p]] = 0.0
    p[p < params.min_p * p.max()] = 0.0
    result: npt.NDArray[np.float64] = p / p.sum()
    return result
