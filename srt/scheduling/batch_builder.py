"""From a step plan to the tensors and rows that an executor takes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from ..execution.forward_batch import ForwardBatch, PromptLogprobRow, SampleRow
from ..memory.kv_memory import KvMemory
from .planner import PlannedRow
from .request import Request
from .stop_rules import suppressed_ids


@dataclass(frozen=True, slots=True)
class StepInput:
    """What Executor.execute takes, with the planned rows that its results belong to."""

    rows: list[PlannedRow]
    batch: ForwardBatch
    sample_rows: list[SampleRow]
    sampled_requests: list[Request]
    prompt_logprob_rows: list[PromptLogprobRow]
    scored_requests: list[Request]


class BatchBuilder:
    """Builds one StepInput per step over one slot table."""

    def __init__(self, memory: KvMemory, eos_token_ids: frozenset[int]) -> None:
        self._memory = memory
        self._eos_token_ids = eos_token_ids
        self._slot_table = torch.from_numpy(memory.table.slot_table)

    def build(self, rows: list[PlannedRow]) -> StepInput:
        """Lay out the planned tokens; every row's slots must be allocated."""
        sample_rows: list[SampleRow] = []
        sampled: list[Request] = []
        logprob_rows: list[PromptLogprobRow] = []
        scored: list[Request] = []
        for index, row in enumerate(rows):
            request = row.request
            if row.num_new == request.num_uncomputed and request.num_new_tokens_left > 0:
                sample_rows.append(self._sample_row(index, request))
                sampled.append(request)
            logprob_row = _prompt_logprob_row(index, row)
            if logprob_row is not None:
                logprob_rows.append(logprob_row)
                scored.append(request)
        return StepInput(rows, self._batch(rows), sample_rows, sampled, logprob_rows, scored)

    def _batch(self, rows: list[PlannedRow]) -> ForwardBatch:
        starts = np.array([row.request.num_computed for row in rows], dtype=np.int64)
        lengths = np.array([row.num_new for row in rows], dtype=np.int64)
        table_rows = np.array([_lease_row(row.request) for row in rows], dtype=np.int64)
        cu_query_lens = np.zeros(len(rows) + 1, dtype=np.int32)
        np.cumsum(lengths, out=cu_query_lens[1:])
        # positions[t] = start of its row + place within the row's new tokens
        row_of_token = np.repeat(np.arange(len(rows)), lengths)
        positions = np.arange(cu_query_lens[-1]) - cu_query_lens[row_of_token]
        positions += starts[row_of_token]
        input_ids = np.concatenate(
            [r.request.tokens[r.request.num_computed :][: r.num_new] for r in rows]
        )
        out_slots = self._memory.table.slot_table[table_rows[row_of_token], positions]
        return ForwardBatch(
            input_ids=torch.from_numpy(input_ids.astype(np.int64)),
            positions=torch.from_numpy(positions.astype(np.int64)),
            out_slots=torch.from_numpy(out_slots.astype(np.int64)),
            cu_query_lens=torch.from_numpy(cu_query_lens),
            kv_lens=torch.from_numpy((starts + lengths).astype(np.int32)),
            table_rows=torch.from_numpy(table_rows),
            slot_table=self._slot_table,
        )

    def _sample_row(self, index: int, request: Request) -> SampleRow:
        return SampleRow(
            batch_row=index,
            params=request.params,
            seed=request.message.seed,
            position=request.num_tokens,
            prompt_ids=request.message.input_ids,
            output_ids=request.output_ids,
            suppressed_ids=suppressed_ids(request, self._eos_token_ids),
            logprobs=request.message.logprobs,
        )


def _lease_row(request: Request) -> int:
    assert request.lease is not None, request.rid
    return request.lease.row


def _prompt_logprob_row(index: int, row: PlannedRow) -> PromptLogprobRow | None:
    """The prompt positions that this row's new tokens predict and that are still to be scored.

    The token at position p is predicted by the one at p - 1.
    """
    request = row.request
    options = request.message.logprobs
    if options is None or not request.wants_prompt_logprobs:
        return None
    first = request.next_logprob_position
    stop = min(request.num_computed + row.num_new + 1, request.prompt_length)
    if first >= stop:
        return None
    return PromptLogprobRow(
        batch_row=index,
        first=first - 1 - request.num_computed,
        target_ids=request.message.input_ids[first:stop],
        options=options,
    )
