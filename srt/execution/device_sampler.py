"""DeviceSampler: from logits to drawn tokens on the device, and back to what the scheduler reads.

Nothing here waits for the device, if the draw does not: parameters go up as a few arrays, tokens
and log-probabilities come down as a few more. The meaning is that of Sampler.

Shape letters: R rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from .device_draw import Draw, DrawParams, greedy_ids, param_arrays
from .forward_batch import NAN_LOGITS, SampledToken, SampleRow
from .logit_changes import has_changes
from .logit_lists import LogitOps, change_lists, changed_logits, least_logit
from .packed_arrays import HostArray
from .score_slices import ScoreSlice, slice_of_drawn


@dataclass(frozen=True, slots=True)
class SamplingPlan:
    """A step's draws: the arrays to upload, and what is to be done with them."""

    rows: Sequence[SampleRow]
    arrays: Mapping[str, HostArray]
    is_greedy: bool  # and nothing else: the arg-max of the raw logits
    drawn: ScoreSlice | None


class DeviceSampler:
    """For a vocabulary of vocab_size."""

    def __init__(self, vocab_size: int, draw: Draw, logit_ops: LogitOps) -> None:
        self._vocab_size = vocab_size
        self._draw = draw
        self._logit_ops = logit_ops

    def plan(self, rows: Sequence[SampleRow]) -> SamplingPlan:
        """Lay out rows' parameters for the device."""
        is_greedy = all(row.params.is_greedy and not has_changes(row) for row in rows)
        arrays: dict[str, HostArray] = {}
        if not is_greedy:
            arrays.update(param_arrays(rows, self._vocab_size))
            arrays.update(change_lists(rows, self._vocab_size))
        drawn = slice_of_drawn(rows)
        if drawn is not None:
            arrays.update(drawn.arrays())
        return SamplingPlan(rows, arrays, is_greedy, drawn)

    def enqueue(
        self, logits: torch.Tensor, plan: SamplingPlan, staged: dict[str, torch.Tensor]
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Draw for logits [R, V] f32, not changed; staged: plan.arrays on the device.

        Returns the tokens [R] int64, 0 where a row failed, and what read() needs on the host.
        """
        wanted = (len(plan.rows), self._vocab_size)
        assert tuple(logits.shape) == wanted, f"logits are {tuple(logits.shape)}, not {wanted}"
        ids = greedy_ids(logits) if plan.is_greedy else self._drawn_ids(logits, plan, staged)
        tokens = ids.clamp_min(0)
        results = {"ids": ids}
        if plan.drawn is not None:
            places = plan.drawn.staged(staged, "places")
            chosen = tokens.index_select(0, places)
            results.update(plan.drawn.compute(logits.index_select(0, places), chosen, staged))
        return tokens, results

    def read(self, plan: SamplingPlan, results: Mapping[str, HostArray]) -> list[SampledToken]:
        """What was drawn, in the order of the rows."""
        sampled = [
            SampledToken(0, error=NAN_LOGITS) if token_id < 0 else SampledToken(token_id)
            for token_id in results["ids"].tolist()
        ]
        if plan.drawn is not None:
            places = plan.drawn.places
            scores = plan.drawn.read(results, [sampled[i].token_id for i in places])
            for i, logprobs in zip(places, scores, strict=True):
                if sampled[i].error is None:
                    sampled[i] = replace(sampled[i], logprobs=logprobs)
        return sampled

    def _drawn_ids(
        self, logits: torch.Tensor, plan: SamplingPlan, staged: dict[str, torch.Tensor]
    ) -> torch.Tensor:
        params = DrawParams(
            temperature=staged["temperature"],
            top_k=staged["top_k"],
            top_p=staged["top_p"],
            min_p=staged["min_p"],
            seed=staged["seed"],
            position=staged["position"],
        )
        if not any(map(has_changes, plan.rows)):
            return self._draw(logits, params, plan.rows)
        changed = changed_logits(logits, staged, self._logit_ops)
        # Where the model gives no mass to any legal id, the lowest of them is taken, not drawn.
        return self._draw(changed, params, plan.rows, floor=least_logit(changed))
