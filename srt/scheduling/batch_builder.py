"""From a step plan to the arrays and rows that an executor takes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from ..execution.forward_batch import ForwardBatch, PromptLogprobRow, SampleRow
from ..memory.kv_memory import KvMemory
from ..sampling_params import LogprobOptions
from .choice_rows import ChoiceScores, PathRow, batch_of_paths, path_rows, score_rows
from .grammar_rows import ConstrainedRow
from .planner import PlannedRow
from .request import Request
from .stop_rules import suppressed_ids


@dataclass(frozen=True, slots=True)
class StepInput:
    """What Executor.execute takes, with the planned rows that its results belong to.

    scored_requests belong to the first of prompt_logprob_rows, choice_scores to those that follow,
    forced_requests, of which tokens are scored that a grammar forced, to the last.
    sampled_table_rows: the request table's row for each of sample_rows. relayed: of those whose
    input is a token still being drawn, the place in sample_rows and the table's row.
    """

    rows: list[PlannedRow]
    batch: ForwardBatch
    sample_rows: list[SampleRow]
    sampled_requests: list[Request]
    prompt_logprob_rows: list[PromptLogprobRow]
    scored_requests: list[Request]
    sampled_table_rows: list[int] = field(default_factory=list)
    relayed: list[tuple[int, int]] = field(default_factory=list)
    constrained: list[ConstrainedRow] = field(default_factory=list)
    choice_scores: list[ChoiceScores] = field(default_factory=list)
    forced_requests: list[Request] = field(default_factory=list)


class BatchBuilder:
    """Builds one StepInput per step over one slot table.

    copies_slots True: a step holds a copy of what it reads of the table, so that the table may
    change before the step has run.
    """

    def __init__(self, memory: KvMemory, copies_slots: bool = False) -> None:
        self._memory = memory
        self._copies_slots = copies_slots

    def build(self, rows: list[PlannedRow]) -> StepInput:
        """Lay out the planned tokens; every row's slots must be allocated."""
        sample_rows: list[SampleRow] = []
        sampled: list[Request] = []
        logprob_rows: list[PromptLogprobRow] = []
        scored: list[Request] = []
        table_rows: list[int] = []
        relayed: list[tuple[int, int]] = []
        constrained: list[ConstrainedRow] = []
        forced_rows: list[PromptLogprobRow] = []
        forced_requests: list[Request] = []
        paths: list[list[PathRow]] | None = None
        places: Iterable[int] = range(len(rows))  # the first row of the batch for each of rows
        if any(row.request.race is not None for row in rows):
            paths = [path_rows(row) for row in rows]
            places = accumulate(map(len, paths), initial=0)
        for index, row in zip(places, rows, strict=False):
            request = row.request
            num_tokens, options = request.num_tokens, request.message.logprobs
            if row.num_new == num_tokens - request.num_computed:
                num_left = request.num_new_tokens_left
                if num_left > 0:
                    table_row = request.kv_lease.row
                    if not request.forced_tail and request.has_pending_token:
                        relayed.append((len(sample_rows), table_row))
                    if request.grammar is not None:
                        one = ConstrainedRow(len(sample_rows), request.grammar, num_left)
                        constrained.append(one)
                    sample_rows.append(_sample_row(index, request, num_tokens, options))
                    sampled.append(request)
                    table_rows.append(table_row)
            if options is None:
                continue  # nearly all rows of nearly all steps
            logprob_row = _prompt_logprob_row(index, row)
            if logprob_row is not None:
                logprob_rows.append(logprob_row)
                scored.append(request)
            elif request.num_forced:
                forced_rows.append(PromptLogprobRow(index, 0, request.forced_to_score, options))
                forced_requests.append(request)
        choice_scores: list[ChoiceScores] = []
        if paths is None:
            batch = self._batch(rows)
        else:
            flat = [one for of_row in paths for one in of_row]
            batch = batch_of_paths(flat, self._memory.table.slot_table, self._copies_slots)
            for index, path in enumerate(flat):
                for logprob_row, whose in score_rows(path, index):
                    logprob_rows.append(logprob_row)
                    choice_scores.append(whose)
        return StepInput(
            rows=rows,
            batch=batch,
            sample_rows=sample_rows,
            sampled_requests=sampled,
            prompt_logprob_rows=logprob_rows + forced_rows,
            scored_requests=scored,
            sampled_table_rows=table_rows,
            relayed=relayed,
            constrained=constrained,
            choice_scores=choice_scores,
            forced_requests=forced_requests,
        )

    def _batch(self, rows: list[PlannedRow]) -> ForwardBatch:
        starts_of_rows: list[int] = []
        lease_rows: list[int] = []
        lengths_of_rows: list[int] = []
        ids: list[int] = []
        for row in rows:
            request, num_new = row.request, row.num_new
            start = request.num_computed
            starts_of_rows.append(start)
            lease_rows.append(request.kv_lease.row)
            lengths_of_rows.append(num_new)
            if num_new == 1:  # nearly all rows of nearly all steps
                ids.append(request.tokens.item(start))
            else:
                ids += request.tokens[start : start + num_new].tolist()
        starts = np.array(starts_of_rows, dtype=np.int64)
        table_rows = np.array(lease_rows, dtype=np.int64)
        input_ids = np.array(ids, dtype=np.int64)
        if len(ids) == len(rows):
            cu_query_lens = np.arange(len(rows) + 1, dtype=np.int32)
            return self._with_slots(
                table_rows, starts + 1, input_ids, starts, table_rows, cu_query_lens
            )
        lengths = np.array(lengths_of_rows, dtype=np.int64)
        cu_query_lens = np.zeros(len(rows) + 1, dtype=np.int32)
        np.cumsum(lengths, out=cu_query_lens[1:])
        # positions[t] = start of its row + place within the row's new tokens
        row_of_token = np.repeat(np.arange(len(rows)), lengths)
        positions = np.arange(cu_query_lens[-1]) - cu_query_lens[row_of_token]
        positions += starts[row_of_token]
        return self._with_slots(
            table_rows,
            starts + lengths,
            input_ids,
            positions,
            table_rows[row_of_token],
            cu_query_lens,
        )

    def _with_slots(
        self,
        table_rows: npt.NDArray[np.int64],  # [B], as are the lengths
        kv_lens: npt.NDArray[np.int64],
        input_ids: npt.NDArray[np.int64],  # [T], as are the two below
        positions: npt.NDArray[np.signedinteger],
        table_row_of_token: npt.NDArray[np.int64],
        cu_query_lens: npt.NDArray[np.int32],
    ) -> ForwardBatch:
        slot_table = self._memory.table.slot_table
        out_slots = slot_table[table_row_of_token, positions]
        if self._copies_slots:
            slot_table = slot_table[table_rows, : kv_lens.max()]  # indexing by a list copies
            table_rows = np.arange(len(table_rows), dtype=np.int64)
        return ForwardBatch(
            input_ids=input_ids,
            positions=positions.astype(np.int64, copy=False),
            out_slots=out_slots.astype(np.int64),
            cu_query_lens=cu_query_lens,
            kv_lens=kv_lens.astype(np.int32),
            table_rows=table_rows,
            slot_table=slot_table,
        )


def _sample_row(
    index: int, request: Request, num_tokens: int, options: LogprobOptions | None
) -> SampleRow:
    length, params, tokens = request.prompt_length, request.params, request.tokens
    return SampleRow(  # by place: names cost 0.5 us, and each row of each step has one
        index,
        params,
        request.message.seed,
        num_tokens,
        tokens[:length],
        tokens[length:num_tokens],
        suppressed_ids(request) if params.min_new_tokens else (),
        None,
        options,
    )


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
