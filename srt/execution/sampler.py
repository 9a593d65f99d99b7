"""Sampler: from logits to tokens and log-probabilities.

A draw is a function of (logits row, parameters, seed, position) and of nothing else in the batch:
rows are worked on one by one, and the only operations on several rows at once (max, log_softmax)
give each row the bits that it would get alone. Knows nothing of requests or devices.

Shape letters: R rows, P prompt positions, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from ..messages import PositionLogprobs
from ..sampling_params import LogprobOptions
from .draw import draw, uniform
from .forward_batch import NAN_LOGITS, SampledToken, SampleRow
from .logit_changes import allowed_mask, changed_logits, has_changes
from .logprobs import position_logprobs

# Rows scored at once: bounds the copy that log_softmax makes to 32 MiB at V = 128k.
_SCORE_BLOCK_ROWS = 64


class Sampler:
    """Draws next tokens and scores known ones, for a vocabulary of vocab_size."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size

    def sample(self, logits: torch.Tensor, rows: list[SampleRow]) -> list[SampledToken]:
        """Draw one token per row.

        logits: [R, V] float32, row i belonging to rows[i]; not changed. A row with a NaN gets an
        error instead of a token; the others are not touched by it.
        """
        if not rows:
            return []
        self._check(logits, len(rows))
        # The maximum is NaN if any logit is; among equal ones the first, so the lowest id, is
        # taken.
        best, best_ids = logits.max(dim=-1)
        # The ids are what a step is for: waiting for the device here is its end, not a stall.
        best_values, greedy_ids = best.tolist(), best_ids.tolist()
        with _one_thread():
            return [
                self._sample_row(logits[i], row, best_values[i], greedy_ids[i])
                for i, row in enumerate(rows)
            ]

    def score_positions(
        self, logits: torch.Tensor, target_ids: list[int], options: LogprobOptions
    ) -> list[PositionLogprobs]:
        """Raw log-probabilities of target_ids[i] under logits[i].

        logits: [P, V] float32, not changed.
        """
        self._check(logits, len(target_ids))
        scored: list[PositionLogprobs] = []
        for first in range(0, len(target_ids), _SCORE_BLOCK_ROWS):
            block = slice(first, first + _SCORE_BLOCK_ROWS)
            scored += position_logprobs(logits[block], target_ids[block], options)
        return scored

    def _sample_row(
        self, logits: torch.Tensor, row: SampleRow, best: float, greedy_id: int
    ) -> SampledToken:
        token_id = self._choose(logits, row, best, greedy_id)
        if token_id is None:
            return SampledToken(0, error=NAN_LOGITS)
        if row.logprobs is None:
            return SampledToken(token_id)
        scored = position_logprobs(logits.unsqueeze(0), [token_id], row.logprobs)
        return SampledToken(token_id, logprobs=scored[0])

    def _choose(
        self, logits: torch.Tensor, row: SampleRow, best: float, greedy_id: int
    ) -> int | None:
        """The token, or None where a logit that counts is NaN."""
        if has_changes(row):
            logits = changed_logits(logits, row)
            best_now, best_id = logits.max(dim=-1)
            best, greedy_id = float(best_now), int(best_id)
        if math.isnan(best):
            return None
        if best == -math.inf:
            return self._lowest_allowed_id(row)
        if row.params.is_greedy:
            return greedy_id
        return draw(logits, row.params, uniform(row.seed, row.position))

    def _lowest_allowed_id(self, row: SampleRow) -> int:
        """Every logit is -inf: any token would do, so the first that may be drawn."""
        allowed = allowed_mask(row, self._vocab_size)
        allowed[list(row.suppressed_ids)] = False
        found = allowed.nonzero().flatten()
        return int(found[0]) if len(found) else 0

    def _check(self, logits: torch.Tensor, num_rows: int) -> None:
        wanted = (num_rows, self._vocab_size)
        assert tuple(logits.shape) == wanted, f"logits are {tuple(logits.shape)}, not {wanted}"
        assert logits.dtype == torch.float32, f"logits are {logits.dtype}, not float32"


@contextmanager
def _one_thread() -> Iterator[None]:
    """Run small operations on the calling thread.

    One row is just large enough for torch to split it, and then each of a dozen operations waits
    for threads that other processes may have displaced: measured 100 times slower on a loaded
    machine.
    """
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(num_threads)
