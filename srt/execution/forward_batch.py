"""ForwardBatch: the seam between scheduling and execution.

Plain numpy arrays, built once per step from the plan. A row is one request's new tokens of this
step: one for decode, a chunk for prefill; the batch is ragged, so both ride in one pass.

Shape letters: B rows, T new tokens of all rows, R rows of the slot table, C its columns, V
vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from ..messages import PositionLogprobs
from ..sampling_params import LogprobOptions, SamplingParams

NAN_LOGITS = "the model computed NaN logits for this request"

TokenIds: TypeAlias = Sequence[int] | npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class ForwardBatch:
    """One step's input, contiguous.

    Row b's new tokens are [cu_query_lens[b], cu_query_lens[b + 1]) of the T axis; its whole
    context, new tokens included, stands in slot_table[table_rows[b], :kv_lens[b]], by position.
    """

    input_ids: npt.NDArray[np.int64]  # [T]
    positions: npt.NDArray[np.int64]  # [T], of each new token in its sequence
    out_slots: npt.NDArray[np.int64]  # [T], where its K and V go
    cu_query_lens: npt.NDArray[np.int32]  # [B + 1]
    kv_lens: npt.NDArray[np.int32]  # [B]
    table_rows: npt.NDArray[np.int64]  # [B]
    slot_table: npt.NDArray[np.int32]  # [R, C], the request table itself, not a copy

    @property
    def num_rows(self) -> int:
        """B."""
        return len(self.kv_lens)

    @property
    def num_tokens(self) -> int:
        """T."""
        return len(self.input_ids)


class SampleRow(msgspec.Struct):  # one for each row of each step: a dataclass takes 3 times as long
    """Draw the next token of batch row `batch_row` from the logits of its last new token.

    position is that of the token to be drawn in its sequence; together with seed it fixes the draw,
    whatever else is in the batch. prompt_ids and output_ids feed the penalties. suppressed_ids may
    not be drawn (stop tokens before min_new_tokens), nor ids whose bit in allowed_ids is 0 (bit
    i % 32 of word i // 32 is id i's). logprobs None: none are wanted.
    """

    batch_row: int
    params: SamplingParams
    seed: int
    position: int
    prompt_ids: TokenIds
    output_ids: TokenIds
    suppressed_ids: tuple[int, ...] = ()
    allowed_ids: npt.NDArray[np.uint32] | None = None  # [ceil(V / 32)]; None: all are allowed
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
    """What one SampleRow got; error says why this row alone failed (NaN logits).

    status_code is that of the error: 400 if the request itself is the cause.
    """

    token_id: int
    logprobs: PositionLogprobs | None = None
    error: str | None = None
    status_code: int = 500


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
