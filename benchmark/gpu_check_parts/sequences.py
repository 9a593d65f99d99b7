"""Sequences: rows that are prefilled and decoded step by step, without a scheduler.

Every row has its slots from the start, scattered over the pool. Shape letter: B rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from runtime.srt.execution.forward_batch import ForwardBatch, SampleRow, StepOutput
from runtime.srt.execution.launching import LaunchingExecutor
from runtime.srt.sampling_params import LogprobOptions, SamplingParams

GREEDY = SamplingParams(temperature=0.0)


class Sequences:
    """B rows of growing length; lens are how many tokens each has in the pool so far."""

    def __init__(self, num_rows: int, num_columns: int) -> None:
        slots = np.random.default_rng(0).permutation(num_rows * num_columns) + 1
        self._table = np.zeros((num_rows + 1, num_columns), dtype=np.int32)
        self._table[1:] = slots.reshape(num_rows, num_columns)
        self._rows = np.arange(1, num_rows + 1, dtype=np.int64)
        self.lens = np.zeros(num_rows, dtype=np.int32)
        self.num_rows = num_rows

    def step(self, new_tokens: Sequence[Sequence[int]]) -> ForwardBatch:
        """The step that computes each row's new tokens, which then count as there."""
        counts = np.array([len(one) for one in new_tokens], dtype=np.int32)
        starts = np.zeros(self.num_rows + 1, dtype=np.int32)
        np.cumsum(counts, out=starts[1:])
        owner = np.repeat(np.arange(self.num_rows), counts)
        positions = np.arange(len(owner)) - starts[owner] + self.lens[owner]
        self.lens = self.lens + counts
        return ForwardBatch(
            input_ids=np.fromiter((t for one in new_tokens for t in one), dtype=np.int64),
            positions=positions.astype(np.int64),
            out_slots=self._table[owner + 1, positions].astype(np.int64),
            cu_query_lens=starts,
            kv_lens=self.lens,
            table_rows=self._rows,
            slot_table=self._table,
        )

    def sample_rows(self, logprobs: Sequence[LogprobOptions] | None = None) -> list[SampleRow]:
        """A greedy draw for each row, with the log-probabilities that are asked for."""
        asked: Sequence[LogprobOptions | None] = logprobs or [None] * self.num_rows
        return [
            SampleRow(row, GREEDY, 0, int(length), (), (), logprobs=options)
            for row, (length, options) in enumerate(zip(self.lens, asked, strict=True))
        ]


def decode_serially(
    executor: LaunchingExecutor, sequences: Sequences, last: list[int], num_steps: int
) -> list[list[int]]:
    """Tokens [num_steps][B] after last: each step is launched when the one before is known."""
    every = list(range(sequences.num_rows))
    tokens = [last]
    for _ in range(num_steps):
        batch = sequences.step([[token] for token in tokens[-1]])
        step = executor.launch(batch, every, [])
        step.sample(sequences.sample_rows(), [])
        tokens.append(_ids(step.collect()))
    return tokens[1:]


def decode_overlapped(
    executor: LaunchingExecutor, sequences: Sequences, last: list[int], num_steps: int
) -> list[list[int]]:
    """decode_serially with a step in flight; tokens go from step to step on the device."""
    every = list(range(sequences.num_rows))
    in_flight = executor.launch(sequences.step([[token] for token in last]), every, [])
    in_flight.sample(sequences.sample_rows(), [])
    unknown = [[0]] * sequences.num_rows
    tokens = []
    for _ in range(num_steps - 1):
        following = executor.launch(sequences.step(unknown), every, every)
        following.sample(sequences.sample_rows(), [])
        tokens.append(_ids(in_flight.collect()))
        in_flight = following
    tokens.append(_ids(in_flight.collect()))
    return tokens


def _ids(output: StepOutput) -> list[int]:
    return [one.token_id for one in output.sampled]
