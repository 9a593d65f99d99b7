"""Stop strings and stop patterns: finding them, and how much text to hold back for them.

A regex runs under a time limit on every call, so that a pattern that backtracks without end fails
its own request and no other.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TypeVar

import regex

from ..errors import GenerationFailed

REGEX_TIMEOUT_SECONDS = 0.1
# CPU time of a call that is a pattern gone wrong (ordinary ones take microseconds); a few may be
# luck.
_SLOW_SECONDS = 0.02
_MAX_SLOW_CALLS = 20

_T = TypeVar("_T")


class StopRegexTimeout(GenerationFailed):
    """A stop_regex took too long on this output; the request that set it ends with this error."""


@dataclass(frozen=True, slots=True)
class StopMatch:
    """A stop found in text[begin:end]; matched is the stop string or pattern as given."""

    matched: str
    begin: int
    end: int


class StopMatcher:
    """The stop strings and patterns of one request."""

    def __init__(self, stop: Sequence[str] = (), stop_regex: Sequence[str] = ()) -> None:
        self._strings = tuple(stop)
        self._sources = tuple(stop_regex)
        self._slow_calls = 0
        self.max_string_chars = max((len(text) for text in stop), default=0)

    @cached_property
    def _patterns(self) -> tuple[regex.Pattern[str], ...]:
        # At first use: a burst of requests then costs the scheduler nothing when it arrives. The
        # library's own cache would keep the patterns of finished requests.
        return tuple(regex.compile(source, cache_pattern=False) for source in self._sources)

    @property
    def has_patterns(self) -> bool:
        """Whether any stop is a regex: its matches have no known length."""
        return bool(self._sources)

    def find(self, text: str, start: int = 0, regex_from: int = 0) -> StopMatch | None:
        """The match that begins first among those that end after start; the shorter on a tie.

        regex_from promises that no pattern's match begins earlier (see first_open): it saves time
        only. Raises StopRegexTimeout.
        """
        found: list[StopMatch] = []
        for stop in self._strings:
            begin = text.find(stop, max(0, start - len(stop) + 1))
            if begin >= 0:
                found.append(StopMatch(stop, begin, begin + len(stop)))
        for pattern in self._patterns:
            span = self._timed(pattern, partial(_search, pattern, text, start, regex_from))
            if span is not None:
                found.append(StopMatch(pattern.pattern, *span))
        return min(found, key=lambda match: (match.begin, match.end), default=None)

    def held_back(self, text: str, start: int = 0) -> int:
        """How many characters at the end of text[start:] may be the beginning of a stop.

        Raises StopRegexTimeout.
        """
        first = self._first_open_string(text, start)
        if self._sources:
            first = min(first, self.first_open(text, start))
        return len(text) - first

    def first_open(self, text: str, start: int = 0) -> int:
        """The first place from start on where more text could make or lengthen a pattern's match.

        len(text) if there is none. As text grows it never falls. Raises StopRegexTimeout.
        """
        first = len(text)
        for pattern in self._patterns:
            first = self._timed(pattern, partial(_first_open, pattern, text, start, first))
        return first

    def _first_open_string(self, text: str, start: int) -> int:
        first = len(text)
        for stop in self._strings:
            position = max(start, len(text) - len(stop) + 1)
            while (position := text.find(stop[0], position, first)) >= 0:
                if stop.startswith(text[position:]):
                    first = position
                    break
                position += 1
        return first

    def _timed(self, pattern: regex.Pattern[str], work: Callable[[], _T]) -> _T:
        began = time.thread_time()
        try:
            result = work()
        except TimeoutError:
            raise _timeout(pattern.pattern) from None
        if time.thread_time() - began > _SLOW_SECONDS:
            self._slow_calls += 1
            if self._slow_calls > _MAX_SLOW_CALLS:
                raise _timeout(pattern.pattern)
        return result


def _search(
    pattern: regex.Pattern[str], text: str, start: int, begin_from: int
) -> tuple[int, int] | None:
    # Overlapped: a match that ends too early must not hide one that begins inside it.
    matches = pattern.finditer(text, begin_from, overlapped=True, timeout=REGEX_TIMEOUT_SECONDS)
    return next((match.span() for match in matches if match.end() > start), None)


def _first_open(pattern: regex.Pattern[str], text: str, start: int, limit: int) -> int:
    deadline = time.thread_time() + REGEX_TIMEOUT_SECONDS
    for position in range(start, limit):
        if _is_open(pattern, text, position):
            return position
        if time.thread_time() > deadline:
            raise TimeoutError
    return limit


def _is_open(pattern: regex.Pattern[str], text: str, position: int) -> bool:
    match = pattern.match(text, position, partial=True, timeout=REGEX_TIMEOUT_SECONDS)
    if match is None or match.partial:
        return match is not None
    # Complete already (and not allowed to stop yet): open only if it can grow to reach new text.
    longer = pattern.fullmatch(text, position, partial=True, timeout=REGEX_TIMEOUT_SECONDS)
    return longer is not None


def _timeout(source: str) -> StopRegexTimeout:
    return StopRegexTimeout(
        f"stop_regex {source!r} takes too long on this output; write it without nested repetition",
        param="stop_regex",
    )
