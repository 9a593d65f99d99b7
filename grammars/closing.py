"""Closer: end a text well before its token budget does.

From time to time a short completion of the present state is looked for. What the budget has beyond
it is slack: with much of it nothing happens for a while. With little a plan is kept: a completion
that fits into what is left. A sampled token is then taken only if the state after it has such a
plan too, otherwise the plan's own next token is taken instead. So once there is a plan the text
ends complete, at whatever limit. The end token itself need not fit any more.
"""

from __future__ import annotations

from collections.abc import Sequence

from .closing_search import HASTY_LIMIT
from .matcher import GrammarError, Matcher

# With less to spare than this every token is checked. It must be more than what the tokens of one
# unchecked stretch can make the completion longer: an optional part with many required ones in it.
STRICT_SLACK_TOKENS = 64
SLACK_SHARE = 8  # of the slack this part may go by unchecked
MAX_UNCHECKED_TOKENS = 256
RETRY_EVERY = 8  # tokens after a search that found no completion that fits; then twice as many
MOST_SKIPPED = 4  # tokens of a plan that a sampled token may have said already


class Closer:
    """Drives the matcher of one request. Every token must go through it, or reset be called."""

    def __init__(self, matcher: Matcher) -> None:
        self._matcher = matcher
        self._plan: list[int] | None = None  # of the present state, while there is little slack
        self._last: list[int] = []  # the completion that was found last, of some state before
        self._num_unchecked = 0  # tokens that may be taken before the next look
        self._retry_after = RETRY_EVERY

    def take(self, token_id: int, remaining: int) -> int:
        """Accept token_id or the plan's next token; returns the one that was accepted.

        Raises GrammarError if token_id is not legal. remaining: how many tokens may still be
        generated, this one included.
        """
        assert remaining > 0, remaining
        return self._take([token_id], remaining)[0]

    def jump(self, token_ids: Sequence[int], remaining: int) -> list[int]:
        """Accept forced tokens as far as remaining allows; [] if the plan spells them shorter."""
        if remaining <= 0 or not token_ids:
            return []
        before = self._plan
        taken = self._take(list(token_ids[:remaining]), remaining, may_refuse=True)
        if not taken:
            self._plan = before
        return taken

    def reset(self) -> None:
        """Forget the plan: the matcher was moved by someone else."""
        self._plan, self._num_unchecked, self._last = None, 0, []

    def _take(self, ids: list[int], remaining: int, may_refuse: bool = False) -> list[int]:
        if self._plan is None and self._num_unchecked <= 0:
            self._look(remaining)
        num_taken = self._matcher.accept(ids)
        if num_taken != len(ids):
            self._matcher.rollback(num_taken)
            raise GrammarError(f"token {ids[num_taken]} is not legal here")
        self._num_unchecked -= num_taken
        old = self._plan
        if old is None:
            return ids
        new = self._plan_after(ids, old, remaining - len(ids))
        if new is not None:
            self._keep(new, remaining - len(ids))
            return ids
        # A completion of the state before exists, none of the state after: go back to it.
        self._matcher.rollback(len(ids))
        if may_refuse:
            return []
        if not self._matcher.accept(old[:1]):
            raise GrammarError(f"token {old[0]} is not legal any more")  # see Matcher.renew
        self._plan = old[1:]
        return old[:1]

    def _look(self, remaining: int) -> None:
        plan = self._end_of_last(remaining - STRICT_SLACK_TOKENS)
        if plan is None:
            plan = self._completion(remaining)
        if plan is None:
            # Each search that finds nothing makes the next one wait for longer, but a hasty one
            # says little: the first thorough one comes in its time.
            num_hasty = max(remaining + 1 - HASTY_LIMIT, 0)
            self._num_unchecked = min(self._retry_after, num_hasty or MAX_UNCHECKED_TOKENS)
            self._retry_after = min(2 * self._retry_after, MAX_UNCHECKED_TOKENS)
            if self._num_unchecked == num_hasty:
                self._retry_after = RETRY_EVERY
        else:
            self._retry_after = RETRY_EVERY
            self._keep(plan, remaining)

    def _end_of_last(self, limit: int) -> list[int] | None:
        """The shortest end of the last completion that completes this state too, within limit.

        What a JSON text misses is mostly what it missed before, less what was written since: trying
        that takes a tenth of a search.
        """
        refused: set[int] = set()  # tokens that are not legal here
        for count in range(1, min(len(self._last), limit) + 1):
            rest = self._last[-count:]
            if rest[0] in refused:
                continue
            num_legal = self._matcher.accept(rest)
            self._matcher.rollback(num_legal)
            if num_legal == count:
                return rest
            if num_legal == 0:
                refused.add(rest[0])
        return None

    def _keep(self, plan: list[int], remaining: int) -> None:
        """Keep plan for the present state if there is little slack."""
        self._last = plan
        slack = remaining - len(plan)
        self._plan = plan if slack < STRICT_SLACK_TOKENS else None
        self._num_unchecked = min(slack // SLACK_SHARE, MAX_UNCHECKED_TOKENS)

    def _plan_after(self, ids: list[int], old: list[int], remaining: int) -> list[int] | None:
        """A completion within remaining, after ids were accepted in a state that old completed."""
        if self._matcher.is_finished:
            return []
        if ids == old[: len(ids)]:
            return old[len(ids) :]
        # Inside a string the same end stays right, and after its quote the rest of it: trying that
        # is cheaper than a search.
        for num_skipped in range(min(MOST_SKIPPED, len(old) - 1) + 1):
            rest = old[num_skipped:]
            if len(rest) <= remaining + 1:
                num_legal = self._matcher.accept(rest)
                self._matcher.rollback(num_legal)
                if num_legal == len(rest):
                    return rest
        return self._completion(remaining)

    def _completion(self, remaining: int) -> list[int] | None:
        """A completion of the present state whose text fits into remaining."""
        return self._matcher.closing_tokens(remaining + 1, remaining - STRICT_SLACK_TOKENS)
