"""NativeExecutor: whole steps and their sampling in the C++ CPU engine, without torch.

A step is one call, during which the interpreter lock is free, and the sampling of its logits
another. Where all rows only need the arg-max no logits are written, and rows with few legal ids get
the logits of those alone; prompt positions are scored in slices from their hidden states, so that
no step holds the logits of a whole chunk.
"""

from __future__ import annotations

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
        scored = []  # the T places of each row's scored tokens, which stand side by side
        for row in logprob_rows:
            first = starts[row.batch_row] + row.first
            scored.append(range(first, first + len(row.target_ids)))
        # The engine takes each token once, in rising order.
        tokens = sorted({*wanted, *(token for one in scored for token in one)})
        place = {token: i for i, token in enumerate(tokens)}
        hidden = np.empty((len(tokens), self.model.config.hidden_size), dtype=np.float32)
        self._step(batch, tokens, hidden_out=hidden)
        sampled: list[SampledToken] = []
        if sample_rows:
            logits = self.model.linear(self._head, hidden[[place[t] for t in wanted]])  # [R, V]
            sampled = self._sampler.sample(logits, sample_rows)
        scores = [
            self._score(hidden[place[one.start] : place[one.start] + len(one)], row)
            for one, row in zip(scored, logprob_rows, strict=True)
        ]
        return StepOutput(sampled, scores)

    def _score(self, hidden: Floats, row: PromptLogprobRow) -> list[PositionLogprobs]:
        scored: list[PositionLogprobs] = []
        for first in range(0, len(row.target_ids), _SCORED_POSITIONS):
            part = slice(first, first + _SCORED_POSITIONS)
            logits = self.model.linear(self._head, hidden[part])  # [P, V] f32
            scored += self._sampler.score_positions(logits, row.target_ids[part], row.options)
        return scored

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
