"""The largest step that a server will be asked for: run once, before the KV pool is sized.

Its memory is measured with a pool of a few slots that all its tokens share: what the tokens are
does not matter, and activations do not depend on where K and V stand.

Shape letters: B rows, T new tokens of all rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..sampling_params import LogprobOptions, SamplingParams
from .device_logprobs import SCORED_POSITIONS
from .forward_batch import ForwardBatch, PromptLogprobRow, SampleRow

PROFILE_SLOTS = 16  # of the pool that stands in for the real one, beside the dummy slot 0
# What a step takes of prompts where they are not cut into chunks; a longer prompt comes alone.
WHOLE_PROMPT_TOKENS = 16384

# The way through the sampler that takes most memory: logits are copied, sorted and scored.
_COSTLY = SamplingParams(temperature=1.0, top_p=0.9, top_k=50, repetition_penalty=1.1)
_SCORED = LogprobOptions(num_top=1)


@dataclass(frozen=True, slots=True)
class LargestStep:
    """num_tokens of num_rows rows, one of them long if there are more tokens than rows."""

    num_tokens: int
    num_rows: int
    context_length: int

    @staticmethod
    def of(chunk_tokens: int, max_rows: int, context_length: int) -> LargestStep:
        """The largest for --chunked-prefill-size, -1 for none, and max_rows requests."""
        prompt_tokens = chunk_tokens
        if chunk_tokens == -1:
            prompt_tokens = max(WHOLE_PROMPT_TOKENS, context_length)
        # No row is longer than the context, and there are no more rows than max_rows.
        num_tokens = min(max(prompt_tokens, max_rows), max_rows * context_length)
        return LargestStep(num_tokens, max_rows, context_length)

    @property
    def num_columns(self) -> int:
        """Columns of the slot table that batch() reads."""
        return max(self._query_lens())

    def batch(self) -> ForwardBatch:
        """The step; its table has num_columns columns and a row for each of its rows, and row 0."""
        lens = np.array(self._query_lens(), dtype=np.int32)
        num_rows, num_tokens = len(lens), int(lens.sum())
        starts = np.zeros(num_rows + 1, dtype=np.int32)
        np.cumsum(lens, out=starts[1:])
        table = np.zeros((num_rows + 1, int(lens.max())), dtype=np.int32)
        table[1:] = 1 + np.arange(table.shape[1]) % PROFILE_SLOTS
        row_of_token = np.repeat(np.arange(num_rows), lens)
        positions = np.arange(num_tokens) - starts[row_of_token]
        return ForwardBatch(
            input_ids=np.zeros(num_tokens, dtype=np.int64),
            positions=positions.astype(np.int64),
            out_slots=table[1 + row_of_token, positions].astype(np.int64),
            cu_query_lens=starts,
            kv_lens=lens,
            table_rows=np.arange(1, num_rows + 1, dtype=np.int64),
            slot_table=table,
        )

    def sample_rows(self) -> list[SampleRow]:
        """A draw for each row."""
        return [
            SampleRow(row, _COSTLY, seed=row, position=1, prompt_ids=[0], output_ids=[])
            for row in range(len(self._query_lens()))
        ]

    def prompt_logprob_rows(self) -> list[PromptLogprobRow]:
        """Scores of as many positions as are done at once, as far as the longest row has them."""
        lens = self._query_lens()
        longest = max(lens)
        count = min(SCORED_POSITIONS, longest)
        return [PromptLogprobRow(lens.index(longest), 0, [0] * count, _SCORED)]

    def _query_lens(self) -> list[int]:
        """New tokens per row: the prompts' first, at most a context each, then one of each."""
        left = self.num_tokens
        lens: list[int] = []
        while left > 0:
            others = max(0, self.num_rows - len(lens) - 1)  # that need a token too
            lens.append(max(1, min(self.context_length, left - others)))
            left -= lens[-1]
        return lens
