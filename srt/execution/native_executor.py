"""NativeExecutor: whole steps in the C++ CPU engine, sampling on the logits that it hands back.

A step is one call, during which the interpreter lock is free. Rows that only need the arg-max never
see their logits; prompt positions are scored in slices from their hidden states, so that no step
holds the logits of a whole chunk.
"""

from __future__ import annotations

import torch

from runtime.kernels.cpu.abi_types import TensorId
from runtime.kernels.cpu.library import CpuModel, StepInput

from ..memory.kv_pool import KvPool
from ..messages import PositionLogprobs
from .forward_batch import ForwardBatch, PromptLogprobRow, SampledToken, SampleRow, StepOutput
from .logit_changes import has_changes
from .sampler import Sampler

# Prompt positions scored at once: their f32 logits take 25 MB at a vocabulary of 49,152.
_SCORED_POSITIONS = 128
_NOT_A_NUMBER = "the model computed NaN logits for this request"


class NativeExecutor:
    """An Executor. Owns the engine's model, the KV pool and the sampler; one step at a time."""

    backend_name = "cpu_native"

    def __init__(self, model: CpuModel, kv_pool: KvPool, weight_form: str) -> None:
        self.model = model
        self.kv_pool = kv_pool
        self.weight_bytes = model.weight_bytes
        self.weight_form = weight_form
        self.dtype = model.config.compute_dtype
        self._head = TensorId.EMBEDDING if model.config.tied_embeddings else TensorId.LM_HEAD
        self._sampler = Sampler(model.config.vocab_size)

    @torch.inference_mode()
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
        logits = torch.empty(len(wanted), self.model.config.vocab_size)  # [R, V] f32
        self._step(batch, wanted, logits=logits)
        return StepOutput(self._sampler.sample(logits, sample_rows), [])

    def _greedy(self, batch: ForwardBatch, wanted: list[int]) -> list[SampledToken]:
        argmax = torch.empty(len(wanted), dtype=torch.int32)
        self._step(batch, wanted, argmax=argmax)
        return [
            SampledToken(token_id) if token_id >= 0 else SampledToken(0, error=_NOT_A_NUMBER)
            for token_id in argmax.tolist()
        ]

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
        hidden = torch.empty(len(tokens), self.model.config.hidden_size)  # [L, hidden] f32
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

    def _score(self, hidden: torch.Tensor, row: PromptLogprobRow) -> list[PositionLogprobs]:
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
        logits: torch.Tensor | None = None,
        argmax: torch.Tensor | None = None,
        hidden_out: torch.Tensor | None = None,
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
            torch.tensor(wanted, dtype=torch.int32),
            logits=logits,
            argmax=argmax,
            hidden_out=hidden_out,
        )


def _needs_only_argmax(row: SampleRow) -> bool:
    return row.params.is_greedy and row.logprobs is None and not has_changes(row)
