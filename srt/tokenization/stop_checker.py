"""StopChecker: the scheduler's look at the text of one output, token by token."""

from __future__ import annotations

from collections.abc import Sequence

from ..sampling_params import SamplingParams
from .incremental import IncrementalDetokenizer
from .stop_match import StopMatch, StopMatcher
from .tokenizer import Tokenizer


class StopChecker:
    """Finds the first stop string or pattern in one output as it grows.

    Sees exactly the text that the detokenizer emits: both decode with the same flags and prompt
    tail. A character whose last bytes are missing is not text yet.
    """

    def __init__(
        self, tokenizer: Tokenizer, params: SamplingParams, prompt_tail: Sequence[int] = ()
    ) -> None:
        self._detokenizer = IncrementalDetokenizer(
            tokenizer, prompt_tail, params.skip_special_tokens, params.spaces_between_special_tokens
        )
        self._matcher = StopMatcher(params.stop, params.stop_regex)
        self._text = ""  # the end of the output, from character _dropped on
        self._dropped = 0
        self._allowed_from = 0  # in _text: a match must end after it
        self._regex_from = 0  # in _text: no pattern's match begins before it

    def push(self, token_id: int, may_stop: bool) -> StopMatch | None:
        """Add a token; the first stop that it completes, with offsets in the whole output.

        While may_stop is False nothing counts; later only matches count that end in text that came
        after. Raises StopRegexTimeout.
        """
        new = self._detokenizer.push((token_id,))
        if not new:
            return None
        self._text += new
        if not may_stop:
            self._allowed_from = len(self._text)
            self._forget()
            return None
        match = self._matcher.find(self._text, self._allowed_from, self._regex_from)
        if match is None:
            self._forget()
            return None
        return StopMatch(match.matched, match.begin + self._dropped, match.end + self._dropped)

    def _forget(self) -> None:
        if self._matcher.has_patterns:
            # Lookbehind may read all earlier text, so none is dropped.
            self._regex_from = self._matcher.first_open(self._text, self._regex_from)
            return
        surplus = len(self._text) - self._matcher.max_string_chars + 1
        if surplus > 0:
            self._text = self._text[surplus:]
            self._dropped += surplus
            self._allowed_from = max(0, self._allowed_from - surplus)
