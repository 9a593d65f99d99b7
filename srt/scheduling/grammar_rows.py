"""Rows whose output follows a grammar: masks before a draw, and what follows from the token drawn.

A matcher is touched only where steps run (in a thread of its own with overlap), in the order of the
steps: the scheduler sees nothing of it but outcomes. What a step accepted of a request that was
retracted meanwhile is taken back when the request runs again.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from runtime.grammars.batch_fill import fill_batch
from runtime.grammars.closing import Closer
from runtime.grammars.matcher import Grammar, GrammarError, Matcher, bitmask_words

from ..execution.forward_batch import SampledToken, SampleRow, TokenIds

MAX_FORCED_TOKENS = 64  # in one step and row: others wait for that step


class GrammarState:
    """Where one request stands in its grammar.

    jumps: whether forced tokens are not drawn; draws_last: but for the last one of the output.
    """

    def __init__(
        self, grammar: Grammar, vocab_size: int, *, jumps: bool, draws_last: bool = False
    ) -> None:
        self.matcher = grammar.matcher()
        self._closer = Closer(self.matcher)
        self.num_words = bitmask_words(vocab_size)
        self._jumps = jumps
        self._num_kept_back = int(draws_last)
        self._num_accepted = 0

    def catch_up(self, output_ids: TokenIds) -> bool:
        """Stand right after output_ids, of which the matcher has seen a beginning, or more.

        Returns whether more may follow. Not after the end, which the scheduler may not have seen
        yet, nor after a step that failed; such a row's request has ended when its result is in.
        """
        surplus = self._num_accepted - len(output_ids)
        if surplus > 0:
            self._closer.take_back(surplus)
        elif surplus < 0:
            missing = [int(token_id) for token_id in output_ids[surplus:]]
            num_legal = self.matcher.accept(missing)
            if num_legal < len(missing) and self.matcher.renew():
                num_legal += self.matcher.accept(missing[num_legal:])
            self._closer.reset()
            self._num_accepted += num_legal
            if num_legal < len(missing):
                return False
        self._num_accepted = len(output_ids)
        return not self.matcher.is_finished

    def renewed_mask(self, mask: npt.NDArray[np.uint32]) -> bool:
        """Fill mask after a rebuild of the matcher's state; False if that does not help."""
        if not self.matcher.renew():
            return False
        try:
            self.matcher.fill(mask)
        except GrammarError:
            return False
        return True

    def take(self, token_id: int, num_left: int) -> Outcome:
        """Take the token that was drawn, one of num_left that may still be.

        Near the end of the budget another token may take its place, one of a completion that fits.
        Raises GrammarError if token_id is not legal.
        """
        try:
            token_id = self._closer.take(token_id, num_left)
        except GrammarError:
            if not self.matcher.renew():
                raise
            self._closer.reset()
            token_id = self._closer.take(token_id, num_left)
        forced = self._jump(num_left - 1) if self._jumps else []
        self._num_accepted += 1 + len(forced)
        is_last = num_left == 1 + len(forced)
        return Outcome(token_id, forced, is_last and self.matcher.is_at_end)

    def _jump(self, num_left: int) -> list[int]:
        """Accept what must follow."""
        forced: list[int] = []
        num_left -= self._num_kept_back
        while num_left > 0 and len(forced) < MAX_FORCED_TOKENS:
            # The end token stands alone: whether nothing else may follow shows at the end only.
            most = min(num_left, MAX_FORCED_TOKENS - len(forced))
            try:
                taken = self._closer.jump(self.matcher.forced_tokens(most), num_left)
            except GrammarError:  # an unusable state; the next step rebuilds it
                break
            if taken and self._num_kept_back and self.matcher.is_finished:
                self._closer.take_back(1)
                taken = taken[:-1]
            if not taken:
                break
            forced += taken
            num_left -= len(taken)
        return forced


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a drawn token means: the token to take, and those that must follow.

    ends_whole: they use up the budget, and complete a text to which nothing may be added.
    """

    token_id: int
    forced: list[int]
    ends_whole: bool = False


@dataclass(frozen=True, slots=True)
class ConstrainedRow:
    """A row of a step that follows a grammar: its place in the step's sample rows.

    num_left: how many tokens may still be drawn, the one of this step included.
    """

    place: int
    state: GrammarState
    num_left: int


class GrammarRows:
    """Masks the constrained rows of steps and takes their tokens, with memory kept in between."""

    def __init__(self) -> None:
        self._masks = np.empty((0, 0), dtype=np.uint32)
        self._failed: dict[int, str] = {}  # places of this step whose draw means nothing, and why

    def mask(self, rows: list[ConstrainedRow], sample_rows: list[SampleRow]) -> None:
        """Let the sample rows of rows draw legal tokens only; their output_ids must be complete."""
        self._failed = {}
        if not rows:
            return
        if len(rows) > len(self._masks):
            self._masks = np.empty((len(rows), rows[0].state.num_words), dtype=np.uint32)
        masks = self._masks[: len(rows)]
        going_on: list[Matcher | None] = []
        for row in rows:
            goes_on = row.state.catch_up(sample_rows[row.place].output_ids)
            going_on.append(row.state.matcher if goes_on else None)
            if not goes_on:
                self._failed[row.place] = "the output has left the grammar"
        for index in fill_batch(going_on, masks):
            if rows[index].state.renewed_mask(masks[index]):
                continue
            self._failed[rows[index].place] = _TOO_COSTLY
            masks[index] = ~np.uint32(0)
        for row, mask in zip(rows, masks, strict=True):
            sample_row = sample_rows[row.place]
            sample_row.allowed_ids = mask
            if sample_row.suppressed_ids and not _has_others(mask, sample_row.suppressed_ids):
                sample_row.suppressed_ids = ()  # min_new_tokens: nothing but the end is legal

    def take(self, rows: list[ConstrainedRow], sampled: list[SampledToken]) -> dict[int, Outcome]:
        """Take what was drawn; return outcomes by place. Corrects sampled where they differ."""
        outcomes: dict[int, Outcome] = {}
        for row in rows:
            drawn = sampled[row.place]
            if drawn.error is not None:
                continue
            if row.place in self._failed:
                text = self._failed[row.place]
                sampled[row.place] = _refused(drawn, text)
                continue
            try:
                outcome = row.state.take(drawn.token_id, row.num_left)
            except GrammarError as error:
                sampled[row.place] = _refused(drawn, f"{_TOO_COSTLY} ({error})")
                continue
            outcomes[row.place] = outcome
            if outcome.token_id != drawn.token_id:
                sampled[row.place] = _instead(drawn, outcome.token_id)
        return outcomes


_TOO_COSTLY = "the grammar cannot be followed any further: it has become too costly; simplify it"


def _refused(drawn: SampledToken, error: str) -> SampledToken:
    return SampledToken(drawn.token_id, error=error, status_code=400)


# What OpenAI's API gives for a token of which the log-probability is not known.
UNKNOWN_LOGPROB = -9999.0


def _instead(drawn: SampledToken, token_id: int) -> SampledToken:
    logprobs = drawn.logprobs
    if logprobs is not None:
        known = {one: logprob for logprob, one in (*(logprobs.top or ()), *(logprobs.by_id or ()))}
        logprobs = type(logprobs)(
            known.get(token_id, UNKNOWN_LOGPROB), token_id, logprobs.top, logprobs.by_id
        )
    return SampledToken(token_id, logprobs)


def _has_others(mask: npt.NDArray[np.uint32], ids: tuple[int, ...]) -> bool:
    """Whether mask allows an id that is not in ids."""
    rest = mask.copy()
    for token_id in ids:
        rest[token_id // 32] &= ~(np.uint32(1) << np.uint32(token_id % 32))
    return bool(rest.any())
