"""Rows of a step for requests that score choices: one for each path without a branch.

The tokens of a trie stand one after the other in the request's row of the slot table, behind the
prompt. A path gets a row of its own here, in which the slots of what stands before it (the prompt,
the stems it grows from) come first. All rows of a step write their keys and values before any reads
them, so that stems and what grows from them go through the model together.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain, count

import numpy as np
import numpy.typing as npt

from ..execution.forward_batch import ForwardBatch, PromptLogprobRow
from ..messages import PositionLogprobs
from ..sampling_params import LogprobOptions
from .choice_race import ChoiceRace
from .choice_trie import AFTER_PROMPT, Edge
from .planner import PlannedRow
from .request import Request


@dataclass(frozen=True, slots=True)
class PathRow:
    """num_new tokens of request from place start on, that follow each other.

    context holds the places of the tokens before them, in order of position.
    """

    request: Request
    start: int
    num_new: int
    context: npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ChoiceScores:
    """Whom the result of a PromptLogprobRow tells something: edges, in the order of the result."""

    race: ChoiceRace
    edges: list[Edge]

    def learn(self, scores: list[PositionLogprobs]) -> None:
        """Tell it."""
        edges = iter(self.edges)
        for one in scores:
            assert one.logprob is not None
            for logprob, token_id in ((one.logprob, one.token_id), *(one.by_id or ())):
                edge = next(edges)
                assert edge.token_id == token_id
                self.race.learn(edge, logprob)


def path_rows(row: PlannedRow) -> list[PathRow]:
    """The rows that row's tokens take; one for a request without choices."""
    request = row.request
    start, stop = request.num_computed, request.num_computed + row.num_new
    race = request.race
    if race is None:
        return [PathRow(request, start, row.num_new, np.arange(start))]
    num_prompt = len(request.message.input_ids)
    rows: list[PathRow] = []
    for place in range(start + 1, stop + 1):
        if place == stop or not _goes_on(race, place - num_prompt):
            rows.append(PathRow(request, start, place - start, _context(race, start, num_prompt)))
            start = place
    return rows


def score_rows(row: PathRow, batch_row: int) -> list[tuple[PromptLogprobRow, ChoiceScores]]:
    """What is to be read from the logits of row's tokens, and who wants it."""
    race = row.request.race
    if race is None:
        return []
    found: list[tuple[PromptLogprobRow, ChoiceScores]] = []
    first = len(row.request.message.input_ids) - 1 - row.start  # the first that predicts
    singles: PromptLogprobRow | None = None  # the last of found, if it may go on
    for i in range(max(first, 0), row.num_new):
        source = AFTER_PROMPT if i == first else race.order[i - first - 1]
        targets = race.trie.targets_of(source)
        edges = [Edge(source, token_id) for token_id in targets]
        if singles is not None and len(targets) == 1:
            singles.target_ids.extend(targets)
            found[-1][1].edges.extend(edges)
            continue
        singles = None
        if targets:
            options = LogprobOptions(token_ids=tuple(targets[1:]))
            scored = PromptLogprobRow(batch_row, i, targets[:1], options)
            found.append((scored, ChoiceScores(race, edges)))
            singles = scored if len(targets) == 1 else None
    return found


def batch_of_paths(
    rows: list[PathRow], slot_table: npt.NDArray[np.int32], is_compact: bool
) -> ForwardBatch:
    """The batch of rows, with a slot table of its own.

    is_compact: the table has one row for each of rows. Else requests keep the numbers of their
    rows, by which devices know them, and further paths take numbers that nobody has in this step:
    those of slot_table first, then higher ones.
    """
    kv_lens = np.array([len(row.context) + row.num_new for row in rows], dtype=np.int32)
    table_rows = np.arange(len(rows), dtype=np.int64)
    if not is_compact:
        table_rows = _numbers(rows, len(slot_table))
    table = np.zeros((int(table_rows.max()) + 1, int(kv_lens.max())), dtype=np.int32)
    input_ids: list[npt.NDArray[np.int32]] = []
    positions: list[npt.NDArray[np.int64]] = []
    out_slots: list[npt.NDArray[np.int32]] = []
    for table_row, row in zip(table_rows.tolist(), rows, strict=True):
        slots = slot_table[row.request.kv_lease.row]
        own, stop = len(row.context), row.start + row.num_new
        table[table_row, :own] = slots[row.context]
        table[table_row, own : own + row.num_new] = slots[row.start : stop]
        input_ids.append(row.request.tokens[row.start : stop])
        positions.append(np.arange(own, own + row.num_new))
        out_slots.append(slots[row.start : stop])
    cu_query_lens = np.zeros(len(rows) + 1, dtype=np.int32)
    np.cumsum([row.num_new for row in rows], out=cu_query_lens[1:])
    return ForwardBatch(
        input_ids=np.concatenate(input_ids).astype(np.int64),
        positions=np.concatenate(positions),
        out_slots=np.concatenate(out_slots).astype(np.int64),
        cu_query_lens=cu_query_lens,
        kv_lens=kv_lens,
        table_rows=table_rows,
        slot_table=table,
    )


def _goes_on(race: ChoiceRace, place: int) -> bool:
    """Whether the token place behind the prompt's end follows the one that stands before it."""
    if place < 0:
        return True
    before = AFTER_PROMPT if place == 0 else race.order[place - 1]
    return race.trie.parents[race.order[place]] == before


def _context(race: ChoiceRace, start: int, num_prompt: int) -> npt.NDArray[np.int64]:
    if start < num_prompt:
        return np.arange(start)
    node = race.order[start - num_prompt]
    before = race.trie.path_to(node)[:-1]
    places = np.array([num_prompt + race.place_of(one) for one in before], dtype=np.int64)
    if not race.trie.follows_prompt(node):
        return places
    return np.concatenate([np.arange(num_prompt), places])


def _numbers(rows: list[PathRow], num_rows: int) -> npt.NDArray[np.int64]:
    taken = frozenset(row.request.kv_lease.row for row in rows)
    spare = chain((n for n in range(1, num_rows) if n not in taken), count(num_rows))
    own = set(taken)
    numbers: list[int] = []
    for row in rows:
        number = row.request.kv_lease.row
        if number in own:
            own.remove(number)
            numbers.append(number)
        else:
            numbers.append(next(spare))
    return np.array(numbers, dtype=np.int64)
