"""NativeExecutor: whole steps and their sampling in the C++ CPU engine, without torch.

A step is one call, during which the interpreter lock is free, and the sampling of its logits
another. Where all rows only need the arg-max no logits are written, and rows with few legal ids get
the logits of those alone; where many prompt positions are scored that is done in slices from their
hidden states, so that no step holds the logits of a whole chunk.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from runtime.kernels.cpu.abi_types import TensorId
from runtime.kernels.cpu.library import CpuModel, StepInput

from ..memory.host_kv_pool import HostKvPool
from ..messages import PositionLogprobs
from .forward_batch import (
    NAN_LOGITS,
    ForwardBatch,
    PromptLogprobRow,
    SampledToken,
    SampleRow,
    StepOutput,
)
from .native_sampler import Floats, NativeSampler

# Prompt positions scored at once: their f32 logits take 25 MB at a vocabulary of 49,152.
_SCORED_POSITIONS = 128


class NativeExecutor:
    """An Executor. Owns the engine's model, the KV pool and the sampler; one step at a time."""

    backend_name = "cpu_native"
    device = "cpu"

    def __init__(self, model: CpuModel, kv_pool: HostKvPool, weight_form: str, dtype: str) -> None:
        self.model = model
        self.kv_pool = kv_pool
        self.weight_bytes = model.weight_bytes
        self.weight_form = weight_form
        self.dtype = dtype
        self._head = TensorId.EMBEDDING if model.config.tied_embeddings else TensorId.LM_HEAD
        self._sampler = NativeSampler(model)
        self._logits = np.empty((0, model.config.vocab_size), dtype=np.float32)

    def execute(
        self,
        batch: ForwardBatch,
        sample_rows: list[SampleRow],
        prompt_logprob_rows: list[PromptLogprobRow],
    ) -> StepOutput:
        """See Executor.execute."""
        starts = batch.cu_query_lens.tolist()
        wanted = [starts[row.batch_row + 1] - 1 for row in sample_rows]
        if prompt_logprob_rows:
            return self._score_and_sample(batch, starts, wanted, sample_rows, prompt_logprob_rows)
        if all(map(_needs_only_argmax, sample_rows)):
            return StepOutput(self._greedy(batch, wanted), [])
        return StepOutput(self._sample(batch, wanted, sample_rows), [])

    def _greedy(self, batch: ForwardBatch, wanted: list[int]) -> list[SampledToken]:
        argmax = np.empty(len(wanted), dtype=np.int32)
        self._step(batch, wanted, argmax=argmax)
        return [
            SampledToken(token_id) if token_id >= 0 else SampledToken(0, error=NAN_LOGITS)
            for token_id in argmax.tolist()
        ]

    def _sample(
        self, batch: ForwardBatch, wanted: list[int], sample_rows: list[SampleRow]
    ) -> list[SampledToken]:
        logits = self._logit_rows(len(wanted))
        masks = [_mask_that_saves_logits(row) for row in sample_rows]
        if all(mask is None for mask in masks):
            self._step(batch, wanted, logits=logits)
            return self._sampler.sample(logits, sample_rows)
        logit_rows = np.empty(len(wanted), dtype=np.int32)
        self._step(batch, wanted, logits=logits, allowed_ids=masks, logit_rows=logit_rows)
        order = np.argsort(logit_rows).tolist()  # the sample row of each row of logits
        sampled = self._sampler.sample(logits, [sample_rows[i] for i in order])
        return [sampled[row] for row in logit_rows.tolist()]

    def _logit_rows(self, count: int) -> Floats:
        """Room for [count, V] logits, kept from step to step: fresh memory costs page faults."""
        if count > len(self._logits):
            self._logits = np.empty((count, self.model.config.vocab_size), dtype=np.float32)
        return self._logits[:count]

    def _score_and_sample(
        self,
        batch: ForwardBatch,
        starts: list[int],
        wanted: list[int],
        sample_rows: list[SampleRow],
        logprob_rows: list[PromptLogprobRow],
    ) -> StepOutput:
        scored = [  # the T places of all scored tokens
            starts[row.batch_row] + row.first + i
            for row in logprob_rows
            for i in range(len(row.target_ids))
        ]
        # The engine takes each token once, in rising order.
        tokens = sorted({*wanted, *scored})
        place = {token: i for i, token in enumerate(tokens)}
        drawn_at, scored_at = [place[t] for t in wanted], [place[t] for t in scored]
        if len(tokens) <= _SCORED_POSITIONS:
            logits = self._logit_rows(len(tokens))
            self._step(batch, tokens, logits=logits)
            scores = self._sampler.score(_rows_at(logits, scored_at), logprob_rows)
            return StepOutput(self._draw(logits[drawn_at], sample_rows), scores)
        # More logits than a step may hold: from hidden states, slice by slice.
        hidden = np.empty((len(tokens), self.model.config.hidden_size), dtype=np.float32)
        self._step(batch, tokens, hidden_out=hidden)
        drawn_logits = self.model.linear(self._head, hidden[drawn_at])  # [R, V]
        scores = self._score(hidden[scored_at], logprob_rows)
        return StepOutput(self._draw(drawn_logits, sample_rows), scores)

    def _draw(self, logits: Floats, rows: list[SampleRow]) -> list[SampledToken]:
        return self._sampler.sample(logits, rows) if rows else []

    def _score(self, hidden: Floats, rows: list[PromptLogprobRow]) -> list[list[PositionLogprobs]]:
        """Score the positions of all rows, whose hidden states follow each other, in slices."""
        scores: list[list[PositionLogprobs]] = [[] for _ in rows]
        for first, parts in _slices(rows):
            num_positions = sum(len(part.target_ids) for _, part in parts)
            logits = self.model.linear(self._head, hidden[first : first + num_positions])
            found = self._sampler.score(logits, [part for _, part in parts])
            for (row, _), some in zip(parts, found, strict=True):
                scores[row] += some
        return scores

    def _step(
        self,
        batch: ForwardBatch,
        wanted: list[int],
        *,
        logits: Floats | None = None,
        argmax: npt.NDArray[np.int32] | None = None,
        hidden_out: Floats | None = None,
        allowed_ids: list[npt.NDArray[np.uint32] | None] | None = None,
        logit_rows: npt.NDArray[np.int32] | None = None,
    ) -> None:
        self.model.step(
            StepInput(
                input_ids=batch.input_ids,
                positions=batch.positions,
                out_slots=batch.out_slots,
                cu_query_lens=batch.cu_query_lens,
                kv_lens=batch.kv_lens,
                table_rows=batch.table_rows,
                slot_table=batch.slot_table,
            ),
            self.kv_pool.k,
            self.kv_pool.v,
            np.array(wanted, dtype=np.int32),
            logits=logits,
            argmax=argmax,
            hidden_out=hidden_out,
            allowed_ids=allowed_ids,
            logit_rows=logit_rows,
        )


def _rows_at(logits: Floats, places: list[int]) -> Floats:
    """The rows of logits at places; logits itself if that is all of them in order."""
    return logits if places == list(range(len(logits))) else logits[places]


def _slices(
    rows: list[PromptLogprobRow],
) -> Iterator[tuple[int, list[tuple[int, PromptLogprobRow]]]]:
    """Parts of rows, each with its row's index, of _SCORED_POSITIONS together; and where they
    begin among all positions.
    """
    parts: list[tuple[int, PromptLogprobRow]] = []
    first = num_positions = 0
    for index, row in enumerate(rows):
        done = 0
        while done < len(row.target_ids):
            some = row.target_ids[done : done + _SCORED_POSITIONS - num_positions]
            parts.append((index, replace(row, target_ids=some)))
            done += len(some)
            num_positions += len(some)
            if num_positions == _SCORED_POSITIONS:
                yield first, parts
                first += num_positions
                parts, num_positions = [], 0
    if parts:
        yield first, parts


def _mask_that_saves_logits(row: SampleRow) -> npt.NDArray[np.uint32] | None:
    """Where only legal ids matter: log-probabilities are those of all logits."""
    if row.allowed_ids is None or row.logprobs is not None:
        return None
    return np.ascontiguousarray(row.allowed_ids, dtype=np.uint32)


def _needs_only_argmax(row: SampleRow) -> bool:
    params = row.params
    return (
        params.is_greedy
        and row.logprobs is None
        and not params.has_penalties
        and not params.logit_bias
        and not row.suppressed_ids
        and row.allowed_ids is None
    )
