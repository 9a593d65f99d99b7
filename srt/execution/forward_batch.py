"""ForwardBatch: the seam between scheduling and execution.

Plain tensors, built once per step from the plan. A row is one request's new tokens of this step:
one for decode, a chunk for prefill; the batch is ragged, so both ride in one pass.

Shape letters: B rows, T new tokens of all rows, R rows of the slot table, C its columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from ..messages import PositionLogprobs
from ..sampling_params import LogprobOptions, SamplingParams


@dataclass(frozen=True, slots=True)
class ForwardBatch:
    """One step's input; all tensors on the model's device.

    Row b's new tokens are [cu_query_lens[b], cu_query_lens[b + 1]) of the T axis; its whole
    context, new tokens included, stands in slot_table[table_rows[b], :kv_lens[b]], by position.
    """

    input_ids: torch.Tensor  # [T] int64
    positions: torch.Tensor  # [T] int64, position of each new token in its sequence
    out_slots: torch.Tensor  # [T] int64, where each new token's K and V go
    cu_query_lens: torch.Tensor  # [B + 1] int32
    kv_lens: torch.Tensor  # [B] int32
    table_rows: torch.Tensor  # [B] int64
    slot_table: torch.Tensor  # [R, C] int32, the request table itself, not a copy

    @property
    def num_rows(self) -> int:
        """B."""
        return self.kv_lens.shape[0]

    @property
    def num_tokens(self) -> int:
        """T."""
        return self.input_ids.shape[0]


@dataclass(frozen=True, slots=True)
class SampleRow:
    """Draw the next token of batch row `batch_row` from the logits of its last new token.

    position is that of the token to be drawn in its sequence; together with seed it fixes the draw,
    whatever else is in the batch. prompt_ids and output_ids feed the penalties. suppressed_ids may
    not be drawn (stop tokens before min_new_tokens). logprobs None: none are wanted.
    """

    batch_row: int
    params: SamplingParams
    seed: int
    position: int
    prompt_ids: list[int]
    output_ids: list[int]
    suppressed_ids: tuple[int, ...] = ()
    logprobs: LogprobOptions | None = None


@dataclass(frozen=True, slots=True)
class PromptLogprobRow:
    """Score known next tokens with the logits of row `batch_row`'s new tokens.

    New token first + i of the row (counted within this step) predicts target_ids[i].
    """

    batch_row: int
    first: int
    target_ids: list[int]
    options: LogprobOptions


@dataclass(frozen=True, slots=True)
class SampledToken:
    """What one SampleRow got; error says why this row alone failed (NaN logits)."""

    token_id: int
    logprobs: PositionLogprobs | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class StepOutput:
    """Results in the order of the rows asked for."""

    sampled: list[SampledToken]
    prompt_logprobs: list[list[PositionLogprobs]]


class Executor(Protocol):
    """Runs a batch: forward, then sampling."""

    def execute(
        self,
        batch: ForwardBatch,
        sample_rows: list[SampleRow],
        prompt_logprob_rows: list[PromptLogprobRow],
    ) -> StepOutput:
        """Write the new tokens' K and V into the pool and return what was drawn and scored."""
        ...
