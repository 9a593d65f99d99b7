"""A model whose answers can be computed by hand, and which reads its context from the KV slots.

The "KV" of a token is the token itself and its position. The next token is a hash of the whole
context as it stands in the slots, so a wrong slot, a freed one or a missing one changes the answer;
it is also checked directly.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence

import numpy as np

from runtime.srt.execution.forward_batch import (
    ForwardBatch,
    PromptLogprobRow,
    SampledToken,
    SampleRow,
    StepOutput,
)
from runtime.srt.messages import PositionLogprobs


def next_token(context: Sequence[int], vocab_size: int) -> int:
    """The token that follows context."""
    return zlib.crc32(np.asarray(context, dtype=np.int32).tobytes()) % vocab_size


def continuation(prompt: Sequence[int], count: int, vocab_size: int) -> list[int]:
    """The count tokens that follow prompt, one after another."""
    context = list(prompt)
    for _ in range(count):
        context.append(next_token(context, vocab_size))
    return context[len(prompt) :]


def score(context: Sequence[int], token_id: int) -> float:
    """The made-up log-probability of token_id after context."""
    return -1.0 - next_token([*context, token_id], 1000) / 1000


def _is_allowed(token_id: int, row: SampleRow) -> bool:
    mask = row.allowed_ids
    return mask is None or bool(int(mask[token_id // 32]) >> token_id % 32 & 1)


class FakeExecutor:
    """Executes ForwardBatches on the model above; records the size of every step."""

    def __init__(self, num_slots: int, vocab_size: int = 50) -> None:
        self.vocab_size = vocab_size
        self.tokens = np.full(num_slots, -1, dtype=np.int64)
        self.positions = np.full(num_slots, -1, dtype=np.int64)
        self.step_tokens: list[int] = []
        self.on_step: Callable[[int], None] = lambda num_tokens: None
        self.fail_on_token: int | None = None

    def execute(
        self,
        batch: ForwardBatch,
        sample_rows: list[SampleRow],
        prompt_logprob_rows: list[PromptLogprobRow],
    ) -> StepOutput:
        return self.draw(batch, self.forward(batch), sample_rows, prompt_logprob_rows)

    def forward(self, batch: ForwardBatch) -> list[list[int]]:
        """Store the new tokens; return the context of each row."""
        self.step_tokens.append(batch.num_tokens)
        self.on_step(batch.num_tokens)
        slots = batch.out_slots
        assert len(set(slots.tolist())) == len(slots), "two tokens share a slot"
        assert (slots > 0).all(), "a token goes to the dummy slot"
        self.tokens[slots] = batch.input_ids
        self.positions[slots] = batch.positions
        return [self._context(batch, row) for row in range(batch.num_rows)]

    def draw(
        self,
        batch: ForwardBatch,
        contexts: list[list[int]],
        sample_rows: list[SampleRow],
        prompt_logprob_rows: list[PromptLogprobRow],
    ) -> StepOutput:
        """What follows from the contexts of the rows."""
        sampled = [self._sample(contexts[row.batch_row], row) for row in sample_rows]
        scores = [self._scores(batch, contexts[r.batch_row], r) for r in prompt_logprob_rows]
        return StepOutput(sampled, scores)

    def _context(self, batch: ForwardBatch, row: int) -> list[int]:
        length = int(batch.kv_lens[row])
        slots = batch.slot_table[int(batch.table_rows[row]), :length]
        assert (self.positions[slots] == np.arange(length)).all(), "a slot holds another position"
        return list(self.tokens[slots].tolist())

    def _sample(self, context: list[int], row: SampleRow) -> SampledToken:
        assert context == [*row.prompt_ids, *row.output_ids], "the KV is not of this request"
        assert row.position == len(context)
        if self.fail_on_token is not None and context[-1] == self.fail_on_token:
            return SampledToken(0, error="the logits are not numbers")
        token = next_token(context, self.vocab_size)
        while token in row.suppressed_ids or not _is_allowed(token, row):
            token = (token + 1) % self.vocab_size
        logprobs = None
        if row.logprobs is not None:
            logprobs = PositionLogprobs(score(context, token), token)
        return SampledToken(token, logprobs)

    def _scores(
        self, batch: ForwardBatch, context: list[int], row: PromptLogprobRow
    ) -> list[PositionLogprobs]:
        begin, end = batch.cu_query_lens[row.batch_row : row.batch_row + 2].tolist()
        first_position = len(context) - (end - begin) + row.first
        assert row.first >= 0 and row.first + len(row.target_ids) <= end - begin
        found = []
        for i, token in enumerate(row.target_ids):
            before = context[: first_position + i + 1]
            others = tuple((score(before, other), other) for other in row.options.token_ids)
            found.append(PositionLogprobs(score(before, token), token, by_id=others or None))
        return found
