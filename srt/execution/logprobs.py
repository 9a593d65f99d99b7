"""Log-probabilities of the raw distribution at given positions.

Shape letters: P positions, V vocabulary.
"""

from __future__ import annotations

import math

import torch

from ..messages import PositionLogprobs
from ..sampling_params import LogprobOptions
from .top_candidates import top_candidates

# Stands for "impossible" in place of -inf, which JSON cannot carry.
MIN_LOGPROB = -9999.0


def position_logprobs(
    logits: torch.Tensor, target_ids: list[int], options: LogprobOptions
) -> list[PositionLogprobs]:
    """One PositionLogprobs per row of logits, with the bits that the row would get alone.

    logits: [P, V] float32, not changed.

    top holds options.num_top pairs in falling order (lower ids first among equals), by_id those of
    options.token_ids in the order asked for. Values are at least MIN_LOGPROB.
    """
    logprobs = raw_logprobs(logits)  # [P, V]
    return [
        _one_position(logprobs[i], target_id, options) for i, target_id in enumerate(target_ids)
    ]


def raw_logprobs(logits: torch.Tensor) -> torch.Tensor:
    """log_softmax of each row of [P, V].

    Logits of +inf share the whole mass; a row of NaN or without mass gets -inf everywhere.
    """
    logprobs = torch.log_softmax(logits, dim=-1)
    for i in torch.isnan(logprobs[:, 0]).nonzero().flatten().tolist():
        row = logits[i]
        infinite = row == math.inf
        num_infinite = int(infinite.sum())
        share = -math.log(num_infinite) if num_infinite else -math.inf
        logprobs[i] = torch.full_like(row, -math.inf).masked_fill(infinite, share)
    return logprobs


def _one_position(
    logprobs: torch.Tensor, target_id: int, options: LogprobOptions
) -> PositionLogprobs:
    wanted = [target_id, *options.token_ids]
    values = [max(v, MIN_LOGPROB) for v in logprobs[wanted].tolist()]
    top = None
    if options.num_top:
        top_values, top_ids = top_candidates(logprobs, options.num_top)
        pairs = zip(top_values.tolist(), top_ids.tolist(), strict=True)
        top = tuple((max(value, MIN_LOGPROB), token_id) for value, token_id in pairs)
    by_id = None
    if options.token_ids:
        by_id = tuple(zip(values[1:], options.token_ids, strict=True))
    return PositionLogprobs(logprob=values[0], token_id=target_id, top=top, by_id=by_id)
