"""find_closing: a short legal end for an unfinished text.

Engines say which tokens are legal, not how far the end is. What shortens a JSON text is known,
however: closing quotes and brackets, then values of one token, then whatever is longest where text
must be filled in. Followed greedily this gives one completion; other choices at its forks, each
followed the same way, then shorten it. All is counted in masks looked at, so that the cost is
bounded and the result the same on every machine.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .closing_choices import ClosingChoices, closing_choices
from .matcher import Bitmask, GrammarError, Matcher
from .vocabulary import Vocabulary

START_MASKS = 1000  # for the first completion of nothing, which is looked for once
GREEDY_MASKS = 300  # for that of another state: about 30 ms
MAX_UNCHANGED = 150  # masks in a row that stay the same, before it is given up
# A bound of last resort, for grammars in which each token costs milliseconds: ambiguous ones.
MAX_CPU_SECONDS = 0.1
FORK_MASKS = 60  # for shortening it
GOOD_ENOUGH = 4  # tokens; a completion as short as this is not worth shortening
START_LIMIT = 4096  # tokens of the completion of nothing, which is searched once


class ClosingFinder:
    """find_closing for the matchers of one grammar; remembers what is found at the start."""

    def __init__(self, vocabulary: Vocabulary, hints: Sequence[str]) -> None:
        self._vocabulary = vocabulary
        self._hints = hints
        self._from_start: list[list[int] | None] = []  # one, once it was searched

    def find(
        self, matcher: Matcher, limit: int, enough: int, is_at_start: bool
    ) -> list[int] | None:
        """See find_closing."""
        if not is_at_start:
            return find_closing(matcher, self._vocabulary, limit, self._hints, enough)
        if not self._from_start:
            found = find_closing(
                matcher, self._vocabulary, START_LIMIT, self._hints, num_masks=START_MASKS
            )
            self._from_start = [found]
        (known,) = self._from_start
        return None if known is None or len(known) > limit else list(known)


def find_closing(
    matcher: Matcher,
    vocabulary: Vocabulary,
    limit: int,
    hints: Sequence[str] = (),
    enough: int = 0,
    num_masks: int = GREEDY_MASKS,
) -> list[int] | None:
    """A legal completion of at most limit tokens, an end token last; None if none was found.

    Leaves matcher as it is. [] if it is finished. The same state gives the same answer. hints are
    texts that the grammar may wait for (see closing_hints). One of at most enough tokens is as
    good as any. Finds one for JSON wherever the choices
    above lead to an end; a pattern that needs certain characters far ahead may be missed.
    """
    if matcher.is_finished:
        return []
    if limit <= 0:
        return None
    search = _Search(matcher.fork(), vocabulary, limit, hints, num_masks)
    try:
        return search.run(max(enough, GOOD_ENOUGH))
    except GrammarError:  # a state too costly to look at: nothing is promised from here
        return None


@dataclass(frozen=True, slots=True)
class _Fork:
    """A place on the way where other tokens were legal too."""

    num_before: int  # tokens before it
    others: Sequence[int]


class _Search:
    def __init__(
        self,
        probe: Matcher,
        vocabulary: Vocabulary,
        limit: int,
        hints: Sequence[str],
        num_masks: int,
    ) -> None:
        self._probe = probe
        self._vocabulary = vocabulary
        self._choices: ClosingChoices = closing_choices(vocabulary)
        self._limit = limit
        self._hints = [vocabulary.encode(text) for text in hints]
        self._mask: Bitmask = np.zeros(vocabulary.bitmask_words, np.uint32)
        self._masks_left = num_masks
        self._ends_at = time.thread_time() + MAX_CPU_SECONDS
        self._path: list[int] = []  # accepted by the probe

    def run(self, enough: int) -> list[int] | None:
        forks: list[_Fork] = []
        best = self._follow(self._limit, forks)
        self._masks_left = FORK_MASKS
        index = 0
        while index < len(forks) and self._masks_left > 0:
            if best is not None and len(best) <= enough:
                break
            fork, path = forks[index], list(self._path)
            index += 1
            for other in fork.others:
                self._rewind(fork.num_before)
                later: list[_Fork] = []
                most = self._limit if best is None else len(best) - 1
                found = self._take([other], most) and self._follow(most, later)
                if found:
                    best, path = found, list(self._path)
                    forks[index:] = later
            self._replay(path)
        return best

    def _follow(self, most: int, forks: list[_Fork]) -> list[int] | None:
        """Go on greedily from the probe's state; the whole completion if it fits into most."""
        unchanged, last = 0, b""
        num_seen: Counter[bytes] = Counter()
        while len(self._path) < most and self._masks_left > 0 and unchanged < MAX_UNCHANGED:
            forced = self._probe.forced_tokens(most - len(self._path))
            if forced and self._take(forced, most):
                if self._probe.is_finished:
                    return list(self._path)
                continue
            self._masks_left -= 1
            self._probe.fill(self._mask)
            end = self._choices.end(self._mask)
            if end is not None:
                return [*self._path, end]
            data = self._mask.tobytes()
            unchanged, last = (unchanged + 1 if data == last else 0), data
            if unchanged % 3 == 1 and self._take_hint(unchanged // 3, most):
                continue
            options = self._choices.ranked(self._mask, unchanged, num_seen[data])
            num_seen[data] += 1
            if options.others:
                forks.append(_Fork(len(self._path), options.others))
            if options.first is None or not self._take([options.first], most):
                return None
        return None

    def _take(self, token_ids: Sequence[int], most: int) -> bool:
        """Accept all of token_ids, or none. Raises GrammarError when the time is used up."""
        if time.thread_time() > self._ends_at:
            raise GrammarError("looking for a completion takes too long")
        if len(self._path) + len(token_ids) > most:
            return False
        taken = self._probe.accept(token_ids)
        if taken < len(token_ids):
            self._probe.rollback(taken)
            return False
        self._path += token_ids
        return True

    def _take_hint(self, turn: int, most: int) -> bool:
        """Where nothing changes any more, try what the grammar's own text mentions."""
        return any(
            self._take(self._hints[(turn + k) % len(self._hints)], most)
            for k in range(len(self._hints))
        )

    def _rewind(self, num_tokens: int) -> None:
        self._probe.rollback(len(self._path) - num_tokens)
        del self._path[num_tokens:]

    def _replay(self, path: list[int]) -> None:
        """Put the probe at the end of path, which shares its beginning with the present one."""
        self._rewind(_num_equal(self._path, path))
        rest = path[len(self._path) :]
        taken = self._probe.accept(rest)
        if taken < len(rest):
            raise GrammarError("what was legal is not any more")  # see Matcher.renew
        self._path = path


def _num_equal(left: list[int], right: list[int]) -> int:
    count = 0
    for a, b in zip(left, right, strict=False):
        if a != b:
            break
        count += 1
    return count
