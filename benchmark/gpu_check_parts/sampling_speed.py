"""The sampling kernel against the same draw in torch operations, which sort the vocabulary."""

from __future__ import annotations

import torch

from runtime.kernels.triton.sampling import sample
from runtime.srt.sampling_params import SamplingParams

from .bench import Bench
from .outcome import Row
from .step_kernel_checks import sampling_tensors

_TOP_K, _TOP_P, _TEMPERATURE = 50, 0.9, 0.8


@torch.inference_mode()
def run(bench: Bench) -> list[Row]:
    """Times of both for one row and for many."""
    vocab_size = bench.pick(70, 128_256)
    rows = []
    for num_rows in bench.pick((2,), (1, 64)):
        logits = 3 * bench.normal(num_rows, vocab_size)
        options = SamplingParams(temperature=_TEMPERATURE, top_k=_TOP_K, top_p=_TOP_P)
        params = sampling_tensors(bench, [options] * num_rows, vocab_size)
        name = f"sampling, {num_rows} rows of {vocab_size}"
        fused = bench.graph_seconds(lambda x=logits, p=params: sample(x, p))  # type: ignore[misc]
        plain = bench.seconds(lambda x=logits: _in_torch(x))  # type: ignore[misc]
        if fused is None or plain is None:
            rows.append(Row(name, None, "us"))
            continue
        note = f"torch {plain * 1e6:.0f} us, {plain / fused:.1f} times as long"
        rows.append(Row(name, fused * 1e6, "us", note=note))
    return rows


def _in_torch(logits: torch.Tensor) -> torch.Tensor:
    """Ids [R] for logits [R, V]."""
    ordered, ids = (logits / _TEMPERATURE).sort(dim=-1, descending=True)
    ordered[:, _TOP_K:] = -torch.inf
    weights = ordered.softmax(-1)
    before = weights.cumsum(-1) - weights
    weights.masked_fill_(before >= _TOP_P, 0.0)
    return ids.gather(-1, torch.multinomial(weights, 1)).squeeze(-1)
