"""TextAssembler: the detokenizer's text of one request, emitted as soon as it is certain."""

from __future__ import annotations

from collections.abc import Sequence

from ..messages import DecodeOptions, FinishReason
from .incremental import IncrementalDetokenizer
from .stop_match import StopMatcher
from .tokenizer import Tokenizer


class TextAssembler:
    """Turns deltas of ids into deltas of text whose sum is the final text, whatever the chunks.

    Text that may be the beginning of a stop is held back while the request runs, so that nothing
    emitted is ever cut.
    """

    def __init__(self, tokenizer: Tokenizer, options: DecodeOptions) -> None:
        self._detokenizer = IncrementalDetokenizer(
            tokenizer,
            options.prompt_tail,
            options.skip_special_tokens,
            options.spaces_between_special_tokens,
        )
        self._matcher = StopMatcher(options.stop, options.stop_regex)
        self._has_stops = bool(options.stop or options.stop_regex)
        self._no_stop_trim = options.no_stop_trim
        self._context = ""  # emitted text, kept only where a pattern may look behind
        self._held = ""
        self._num_emitted_chars = 0

    def push(self, token_ids: Sequence[int], finish: FinishReason | None = None) -> str:
        """Add token_ids and return the text that is certain now; with finish, all that is left.

        Raises StopRegexTimeout.
        """
        if finish is not None:
            return self._finish(token_ids, finish)
        new = self._detokenizer.push(token_ids)
        if not self._has_stops:  # nearly every token comes this way
            self._num_emitted_chars += len(new)
            return new
        self._held += new
        text = self._context + self._held
        num_held = self._matcher.held_back(text, len(self._context))
        certain = self._held[: len(self._held) - num_held]
        self._held = self._held[len(certain) :]
        self._num_emitted_chars += len(certain)
        if self._matcher.has_patterns:
            self._context += certain
        return certain

    def _finish(self, token_ids: Sequence[int], finish: FinishReason) -> str:
        ended_by_token = finish.type == "stop" and isinstance(finish.matched, int)
        if ended_by_token and not self._no_stop_trim:
            token_ids = token_ids[:-1]
        rest = self._held + self._detokenizer.push(token_ids) + self._detokenizer.finish()
        self._held = ""
        if finish.text_end is not None:
            rest = rest[: max(0, finish.text_end - self._num_emitted_chars)]
        self._num_emitted_chars += len(rest)
        return rest
