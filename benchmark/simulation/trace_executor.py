"""Stands in for the model: draws each request's answer from the trace."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from runtime.srt.execution.forward_batch import (
    ForwardBatch,
    PromptLogprobRow,
    SampledToken,
    SampleRow,
    StepOutput,
)
from runtime.srt.scheduling.batch_builder import StepInput
from runtime.srt.scheduling.planner import PlannedRow

_NO_IDS = np.empty(0, dtype=np.int64)
_NO_COUNTS = np.empty(0, dtype=np.int32)
_NO_BATCH = ForwardBatch(
    input_ids=_NO_IDS,
    positions=_NO_IDS,
    out_slots=_NO_IDS,
    cu_query_lens=_NO_COUNTS,
    kv_lens=_NO_COUNTS,
    table_rows=_NO_IDS,
    slot_table=_NO_COUNTS,
)


class TraceExecutor:
    """answers[i] are the tokens of the request whose seed is i; callers keep it filled."""

    def __init__(self) -> None:
        self.answers: dict[int, Sequence[int]] = {}

    def execute(
        self,
        batch: ForwardBatch,
        sample_rows: list[SampleRow],
        prompt_logprob_rows: list[PromptLogprobRow],
    ) -> StepOutput:
        """Draw the next token of each row's answer."""
        answers = self.answers
        drawn = [SampledToken(answers[row.seed][len(row.output_ids)]) for row in sample_rows]
        return StepOutput(drawn, [[] for _ in prompt_logprob_rows])


def build_without_arrays(rows: list[PlannedRow]) -> StepInput:
    """Return all of a step that a TraceExecutor reads; no model is here to read the arrays.

    Does what BatchBuilder.build does for requests without logprobs that want at least one token.
    """
    sampled = [row.request for row in rows if row.num_new == row.request.num_uncomputed]
    return StepInput(
        rows=rows,
        batch=_NO_BATCH,
        sample_rows=[
            SampleRow(0, one.params, one.message.seed, one.num_tokens, (), one.output_ids)
            for one in sampled
        ],
        sampled_requests=sampled,
        prompt_logprob_rows=[],
        scored_requests=[],
    )
