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
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from .closing_choices import CIRCLES, ClosingChoices, closing_choices
from .closing_hints import closing_hints
from .matcher import Bitmask, GrammarError, Matcher
from .pattern_completion import PatternCompletions
from .prepared import PreparedGrammar
from .vocabulary import Vocabulary

START_MASKS = 1000  # for the first completion of nothing, which is looked for once
GREEDY_MASKS = 300  # for that of another state: about 30 ms
MAX_UNCHANGED = 150  # masks in a row that stay the same, before it is given up
# Bounds of last resort, for grammars in which each token costs milliseconds: ambiguous ones. Others
# wait for the search: while the budget is large there will be another one.
MAX_CPU_SECONDS = 0.1
HASTY_CPU_SECONDS = 0.015
HASTY_LIMIT = 256  # tokens; with more than these to go a search is hasty
MAX_GAIN = 4  # tokens by which a text gets nearer to its end with each token, at most
START_CPU_SECONDS = 0.3
FORK_MASKS = 60  # for shortening it
GOOD_ENOUGH = 4  # tokens; a completion as short as this is not worth shortening
RESPELT_SHARE = 4  # of a limit that a completion may be beyond it before it is spelt anew
MAX_VALUES = 8  # that the grammar spells, tried at each fork
START_LIMIT = 4096  # tokens of the completion of nothing, which is searched once


class ClosingFinder:
    """find_closing for the matchers of one grammar; remembers what is found at the start."""

    def __init__(self, vocabulary: Vocabulary, prepared: PreparedGrammar) -> None:
        self._vocabulary = vocabulary
        self._prepared = prepared
        self._from_start: list[list[int] | None] = []  # one, once it was searched
        if prepared.trial is not None:
            closing = prepared.trial.closing
            self._from_start.append(None if closing is None else list(closing))

    def find(
        self, matcher: Matcher, limit: int, enough: int, taken: Sequence[int]
    ) -> list[int] | None:
        """See find_closing. taken: the tokens that matcher has taken since the start."""
        if taken:
            if self._is_far(limit, len(taken)):
                return None
            return find_closing(matcher, self._vocabulary, limit, self._help, enough, taken)
        if not self._from_start:
            try:
                self._from_start.append(find_whole(matcher, self._vocabulary, self._help))
            except GrammarError:
                self._from_start.append(None)
        (known,) = self._from_start
        return None if known is None or len(known) > limit else list(known)

    def _is_far(self, limit: int, num_taken: int) -> bool:
        """Whether the way from the start is so long that a search now would be in vain."""
        known = self._from_start[0] if self._from_start else None
        return known is not None and len(known) - MAX_GAIN * num_taken > 2 * limit

    @cached_property
    def _help(self) -> ClosingHelp:
        trial = self._prepared.trial
        texts = closing_hints(self._prepared) if trial is None else trial.hints
        return closing_help(self._prepared, texts, self._vocabulary)


@dataclass(frozen=True, slots=True)
class ClosingHelp:
    """What a grammar's own text says of what it may wait for.

    hints: tokens of such texts (see closing_hints).
    """

    hints: Sequence[Sequence[int]]
    completions: PatternCompletions


def closing_help(
    prepared: PreparedGrammar, hints: Iterable[str], vocabulary: Vocabulary
) -> ClosingHelp:
    """The help of prepared, whose hints are known."""
    ids = [vocabulary.encode(text) for text in hints]
    return ClosingHelp(ids, PatternCompletions(prepared))


class TooCostly(GrammarError):
    """An engine met its limits: after path, in tokens from where the search began."""

    def __init__(self, reason: str, path: Sequence[int]) -> None:
        super().__init__(reason)
        self.path = path


class _OutOfTime(GrammarError):
    """The search has used up its time; the state by itself may be a good one."""


def find_whole(
    matcher: Matcher, vocabulary: Vocabulary, with_help: ClosingHelp
) -> list[int] | None:
    """find_closing from the start, where it may take longer; raises TooCostly."""
    search = _Search(
        matcher.fork(), vocabulary, START_LIMIT, with_help, START_MASKS, START_CPU_SECONDS
    )
    try:
        return search.run(GOOD_ENOUGH)
    except _OutOfTime:
        return None
    except GrammarError as error:
        raise TooCostly(str(error), search.path) from None


def find_closing(
    matcher: Matcher,
    vocabulary: Vocabulary,
    limit: int,
    with_help: ClosingHelp,
    enough: int,
    taken: Sequence[int],
) -> list[int] | None:
    """A legal completion of at most limit tokens, an end token last; None if none was found.

    Leaves matcher as it is. [] if it is finished. The same state gives the same answer, unless time
    ends the search. One of at most enough tokens is as good as any. taken: what matcher has taken
    since the start. Finds one for JSON wherever the choices above lead to an end; a pattern that
    needs many certain characters may be missed.
    """
    if matcher.is_finished:
        return []
    if limit <= 0:
        return None
    seconds = HASTY_CPU_SECONDS if limit > HASTY_LIMIT else MAX_CPU_SECONDS
    search = _Search(matcher.fork(), vocabulary, limit, with_help, GREEDY_MASKS, seconds, taken)
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
        with_help: ClosingHelp,
        num_masks: int,
        cpu_seconds: float,
        taken: Sequence[int] = (),
    ) -> None:
        self._probe = probe
        self._vocabulary = vocabulary
        self._choices: ClosingChoices = closing_choices(vocabulary)
        self._limit = limit
        self._most_found = limit + limit // RESPELT_SHARE + 1
        self._taken = taken
        self._completions = with_help.completions
        self._num_own_hints = len(with_help.hints)
        self._hints = [*with_help.hints, *self._choices.usual_hints]
        self._mask: Bitmask = np.zeros(vocabulary.bitmask_words, np.uint32)
        self._masks_left = num_masks
        self._ends_at = time.thread_time() + cpu_seconds
        self.path: list[int] = []  # accepted by the probe
        self._best: list[int] | None = None
        self._circles = False  # whether the same choice came up again and again

    def run(self, enough: int) -> list[int] | None:
        forks: list[_Fork] = []
        self._best = self._follow(self._most_found, forks)
        self._masks_left = FORK_MASKS
        with suppress(_OutOfTime):
            self._best = self._shortened(forks, enough)
        found = self._best
        if found is not None and len(found) > GOOD_ENOUGH:
            found = self._respelt(found)
        return None if found is None or len(found) > self._limit else found

    def _respelt(self, found: list[int]) -> list[int]:
        """The text of found as the tokenizer cuts it, if it is shorter so and legal."""
        *ids, end = found
        try:
            own = [*self._vocabulary.encode(self._vocabulary.joined(ids).decode()), end]
        except UnicodeDecodeError:  # from within a character on
            return found
        if len(own) >= len(found):
            return found
        self._rewind(0)
        self.path = own[: self._probe.accept(own)]
        return own if len(self.path) == len(own) else found

    def _shortened(self, forks: list[_Fork], enough: int) -> list[int] | None:
        index = 0
        while index < len(forks) and self._masks_left > 0:
            if self._best is not None and len(self._best) <= enough:
                break
            fork, path = forks[index], list(self.path)
            others = self._others(fork)
            index += 1
            if not others:
                continue
            for other in others:
                self._rewind(fork.num_before)
                later: list[_Fork] = []
                most = self._most_found if self._best is None else len(self._best) - 1
                found = self._follow(most, later) if self._take(other, most) else None
                if found:
                    self._best, path = found, list(self.path)
                    forks[index:] = later
            self._replay(path)
        return self._best

    def _others(self, fork: _Fork) -> list[list[int]]:
        others = [[one] for one in fork.others]
        return [*others, *self._values] if self._best is None or self._circles else others

    @cached_property
    def _values(self) -> list[list[int]]:
        """What only the grammar knows of: an item that an array must contain, say."""
        texts = self._completions.values[:MAX_VALUES]
        return [self._vocabulary.encode(text) for text in texts]

    def _follow(self, most: int, forks: list[_Fork]) -> list[int] | None:
        """Go on greedily from the probe's state; the whole completion if it fits into most."""
        unchanged, last = 0, b""
        num_seen: Counter[bytes] = Counter()
        while len(self.path) < most and self._masks_left > 0 and unchanged < MAX_UNCHANGED:
            forced = self._probe.forced_tokens(most - len(self.path))
            if forced and self._take(forced, most):
                if self._probe.is_finished:
                    return list(self.path)
                continue
            self._masks_left -= 1
            self._probe.fill(self._mask)
            end = self._choices.end(self._mask)
            if end is not None:
                return [*self.path, end]
            data = self._mask.tobytes()
            unchanged, last = (unchanged + 1 if data == last else 0), data
            num_before = num_seen[data]
            num_seen[data] += 1
            self._circles |= num_before >= CIRCLES
            if self._take_what_is_missing(unchanged, num_before, most):
                continue
            options = self._choices.ranked(self._mask, unchanged, num_before)
            if options.others or not self._choices.is_text(self._mask):
                forks.append(_Fork(len(self.path), options.others))
            if options.first is None or not self._take([options.first], most):
                return None
        return None

    def _take(self, token_ids: Sequence[int], most: int) -> bool:
        """Accept all of token_ids, or none. Raises GrammarError when the time is used up."""
        if time.thread_time() > self._ends_at:
            raise _OutOfTime("looking for a completion takes too long")
        if len(self.path) + len(token_ids) > most:
            return False
        taken = self._probe.accept(token_ids)
        if taken < len(token_ids):
            self._probe.rollback(taken)
            return False
        self.path += token_ids
        return True

    def _take_what_is_missing(self, unchanged: int, num_seen: int, most: int) -> bool:
        """Take what the grammar's own text says of a place, where its mask says little."""
        if not self._choices.is_text(self._mask):
            if unchanged % 3 == 1:
                return self._take_hint(unchanged // 3, len(self._hints), most)
            # Every other time: what comes up so often may also be a long list of required parts.
            if not self._circles or num_seen % 2 or self._choices.can_close(self._mask):
                return False
            return self._take_example(num_seen // 2, most)
        if unchanged < 2 and self._choices.is_open_text(self._mask):
            num_own = self._num_own_hints if unchanged == 0 else len(self._hints)
            return self._take_completion(most) or self._take_hint(0, num_own, most)
        # Where it is not open, a quote that stands alone is tried before (ClosingChoices.ranked).
        return unchanged % 3 == 1 < unchanged and self._take_hint(
            unchanged // 3, len(self._hints), most
        )

    def _take_completion(self, most: int) -> bool:
        """Where a pattern waits for something, try what ends it from here."""
        text = self._vocabulary.joined([*self._taken, *self.path])
        try:
            ends = self._completions.after(text.decode())
        except UnicodeDecodeError:  # within a character
            return False
        return any(self._take(self._vocabulary.encode(end), most) for end in ends)

    def _take_example(self, turn: int, most: int) -> bool:
        """Where the same choice comes up again, try what the grammar's terminals spell."""
        texts = self._completions.examples
        if not texts:
            return False
        turn %= len(texts)
        ids = map(self._vocabulary.encode, [*texts[turn:], *texts[:turn]])
        return any(self._take(one, most) for one in ids)

    def _take_hint(self, turn: int, num_hints: int, most: int) -> bool:
        """Where nothing changes any more, try what the grammar's own text mentions."""
        return any(self._take(self._hints[(turn + k) % num_hints], most) for k in range(num_hints))

    def _rewind(self, num_tokens: int) -> None:
        self._probe.rollback(len(self.path) - num_tokens)
        del self.path[num_tokens:]

    def _replay(self, path: list[int]) -> None:
        """Put the probe at the end of path, which shares its beginning with the present one."""
        self._rewind(_num_equal(self.path, path))
        rest = path[len(self.path) :]
        taken = self._probe.accept(rest)
        if taken < len(rest):
            raise GrammarError("what was legal is not any more")  # see Matcher.renew
        self.path = path


def _num_equal(left: list[int], right: list[int]) -> int:
    count = 0
    for a, b in zip(left, right, strict=False):
        if a != b:
            break
        count += 1
    return count
