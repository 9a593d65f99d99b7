"""Closer: end a text well before its token budget does.

From time to time a short completion of the present state is looked for. What the budget has beyond
it is slack: with much of it nothing happens for a while. With little a plan is kept: a completion
that fits into what is left. A sampled token is then taken only if the state after it has such a
plan too, otherwise the plan's own next token is taken instead. So once there is a plan the text
ends complete, at whatever limit. The end token itself need not fit any more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from .closing_search import HASTY_LIMIT
from .matcher import GrammarError, Matcher

# With less to spare than this every token is checked. It must be more than what the tokens of one
# unchecked stretch can make the completion longer: an optional part with many required ones in it.
STRICT_SLACK_TOKENS = 64
SLACK_SHARE = 8  # of the slack this part may go by unchecked
MAX_UNCHECKED_TOKENS = 256
RETRY_EVERY = 8  # tokens after a search that found no completion that fits; then twice as many
MOST_TAKEN_BACK = 256  # tokens; of more the plan is forgotten
MOST_SKIPPED = 4  # tokens of a plan that a sampled token may have said already


class _Standing(NamedTuple):
    """What a Closer goes by at one place of the text."""

    plan: list[int] | None  # of this state, while there is little slack
    last: list[int]  # the completion that was found last, of some state before
    num_unchecked: int  # tokens that may be taken before the next look
    retry_after: int


class Closer:
    """Drives the matcher of one request. Every token must go through it, or reset be called.

    What it does at a place follows from the tokens before it, however they came: drawn one by one,
    jumped over, or taken back and drawn again.
    """

    def __init__(self, matcher: Matcher) -> None:
        self._matcher = matcher
        self._plan: list[int] | None = None
        self._last: list[int] = []
        self._num_unchecked = 0
        self._retry_after = RETRY_EVERY
        self._past: deque[_Standing] = deque(maxlen=MOST_TAKEN_BACK)  # before each token

    def take(self, token_id: int, remaining: int) -> int:
        """Accept token_id or the plan's next token; returns the one that was accepted.

        Raises GrammarError if token_id is not legal. remaining: how many tokens may still be
        generated, this one included.
        """
        assert remaining > 0, remaining
        before = self._standing
        if not self._follow(token_id, remaining):
            # A completion of the state before exists, none of the state after: go by the former.
            plan = self._plan
            assert plan is not None
            token_id = plan[0]
            if not self._matcher.accept([token_id]):
                raise GrammarError(f"token {token_id} is not legal any more")  # see Matcher.renew
            self._plan = plan[1:]
        self._past.append(before)
        return token_id

    def jump(self, token_ids: Sequence[int], remaining: int) -> list[int]:
        """Accept forced tokens as far as remaining allows and the plan spells nothing shorter."""
        ids = list(token_ids[: max(remaining, 0)])
        if self._plan is None and self._num_unchecked >= len(ids):
            self._accept(ids)
            for _ in ids:
                self._past.append(self._standing)
                self._num_unchecked -= 1
            return ids
        for count, token_id in enumerate(ids):
            before = self._standing
            try:
                follows = self._follow(token_id, remaining - count)
            except GrammarError:  # an unusable state; what was taken before it counts
                follows = False
            if not follows:
                self._stand(before)
                return ids[:count]
            self._past.append(before)
        return ids

    def take_back(self, num_tokens: int) -> None:
        """Undo the last tokens."""
        self._matcher.rollback(num_tokens)
        if num_tokens > len(self._past):
            self.reset()
            return
        for _ in range(num_tokens):
            before = self._past.pop()
        if num_tokens:
            self._stand(before)

    def reset(self) -> None:
        """Forget the plan: the matcher was moved by someone else."""
        self._plan, self._num_unchecked, self._last = None, 0, []
        self._past.clear()

    @property
    def _standing(self) -> _Standing:
        return _Standing(self._plan, self._last, self._num_unchecked, self._retry_after)

    def _stand(self, at: _Standing) -> None:
        self._plan, self._last, self._num_unchecked, self._retry_after = at

    def _accept(self, ids: list[int]) -> None:
        num_taken = self._matcher.accept(ids)
        if num_taken != len(ids):
            self._matcher.rollback(num_taken)
            raise GrammarError(f"token {ids[num_taken]} is not legal here")

    def _follow(self, token_id: int, remaining: int) -> bool:
        """Accept token_id; not if there is a completion, and none after it that fits."""
        if self._plan is None and self._num_unchecked <= 0:
            self._look(remaining)
        self._accept([token_id])
        old = self._plan
        if old is None:
            self._num_unchecked -= 1
            return True
        new = self._plan_after(token_id, old, remaining - 1)
        if new is None:
            self._matcher.rollback(1)
            return False
        self._keep(new, remaining - 1)
        return True

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

    def _plan_after(self, token_id: int, old: list[int], remaining: int) -> list[int] | None:
        """A completion within remaining, after token_id, in a state that old completed."""
        if self._matcher.is_finished:
            return []
        if token_id == old[0]:
            return old[1:]
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
