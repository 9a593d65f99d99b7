"""The largest step stands for all that a server may be asked for."""

from __future__ import annotations

import numpy as np
import pytest

from runtime.srt.execution.profiling import PROFILE_SLOTS, WHOLE_PROMPT_TOKENS, LargestStep
from runtime.srt.scheduling import planner


@pytest.mark.parametrize(
    ("chunk", "max_rows", "context"),
    [(512, 256, 8192), (8192, 64, 2048), (16, 40, 100), (-1, 8, 300), (1, 1, 16)],
)
def test_it_has_all_rows_and_all_tokens_of_a_step(chunk: int, max_rows: int, context: int) -> None:
    step = LargestStep.of(chunk, max_rows, context)
    batch = step.batch()

    prompt_tokens = chunk if chunk != -1 else max(WHOLE_PROMPT_TOKENS, context)
    assert batch.num_tokens == min(max(prompt_tokens, max_rows), max_rows * context)
    assert batch.num_rows == max_rows
    assert int(batch.kv_lens.max()) <= context
    assert len(step.sample_rows()) == batch.num_rows


def test_its_tokens_share_a_few_slots() -> None:
    batch = LargestStep.of(512, 4, 8192).batch()

    assert set(batch.out_slots.tolist()) == set(range(1, PROFILE_SLOTS + 1))
    rows = batch.slot_table[batch.table_rows]
    assert int(rows.max()) <= PROFILE_SLOTS
    assert (batch.slot_table[0] == 0).all()


def test_positions_count_within_each_row() -> None:
    batch = LargestStep.of(20, 3, 12).batch()

    starts = batch.cu_query_lens
    for first, last in zip(starts, starts[1:], strict=False):
        assert batch.positions[first:last].tolist() == list(range(last - first))
    assert np.diff(starts).tolist() == batch.kv_lens.tolist()


def test_whole_prompts_are_as_long_as_the_planner_makes_them() -> None:
    assert WHOLE_PROMPT_TOKENS == planner.WHOLE_PROMPT_TOKENS
