"""What a request does to its logits before a token is chosen: penalties, bias, suppression.

In this order: ids that are not allowed become impossible, repetition penalty over prompt and
output, frequency and presence penalty over the output, logit_bias, suppressed ids.
Shape letters: V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import torch

from .forward_batch import SampleRow, TokenIds


def has_changes(row: SampleRow) -> bool:
    """Whether changed_logits would change anything."""
    params = row.params
    return bool(
        params.has_penalties
        or params.logit_bias
        or row.suppressed_ids
        or row.allowed_ids is not None
    )


def allowed_mask(row: SampleRow, vocab_size: int) -> torch.Tensor:
    """Which ids row.allowed_ids leaves: [V] bool."""
    if row.allowed_ids is None:
        return torch.ones(vocab_size, dtype=torch.bool)
    bits = np.unpackbits(row.allowed_ids.view(np.uint8), bitorder="little")[:vocab_size]
    return torch.from_numpy(bits.astype(np.bool_))


def changed_logits(logits: torch.Tensor, row: SampleRow) -> torch.Tensor:
    """A changed copy of logits: [V] float32."""
    changed = logits.clone()
    params = row.params
    if row.allowed_ids is not None:
        changed[~allowed_mask(row, len(changed)).to(changed.device)] = -math.inf
    if params.repetition_penalty != 1.0:
        _penalize_repetition(changed, row.prompt_ids, row.output_ids, params.repetition_penalty)
    if len(row.output_ids) and (params.frequency_penalty or params.presence_penalty):
        _penalize_output(changed, row.output_ids, params.frequency_penalty, params.presence_penalty)
    if params.logit_bias:
        ids, biases = zip(*params.logit_bias, strict=True)
        changed.index_add_(0, _ids(ids, changed), changed.new_tensor(biases))
    if row.suppressed_ids:
        changed[_ids(row.suppressed_ids, changed)] = -math.inf
    return changed


def _penalize_repetition(
    logits: torch.Tensor, prompt_ids: TokenIds, output_ids: TokenIds, penalty: float
) -> None:
    seen = {*prompt_ids, *output_ids}
    if not seen:
        return
    ids = _ids(seen, logits)
    values = logits[ids]
    logits[ids] = torch.where(values > 0, values / penalty, values * penalty)


def _penalize_output(
    logits: torch.Tensor, output_ids: TokenIds, frequency: float, presence: float
) -> None:
    ids, counts = torch.unique(_ids(output_ids, logits), return_counts=True)
    logits[ids] -= frequency * counts.to(logits.dtype) + presence


def _ids(ids: Iterable[int], like: torch.Tensor) -> torch.Tensor:
    return torch.tensor([int(one) for one in ids], dtype=torch.int64, device=like.device)
