"""llguidance behind the interface of matcher.py.

Sound and quick to compile; its forced tokens are cut as the tokenizer cuts them. What it does
differently is hidden here: an end token is not a step of its own, and a matcher that was given an
illegal token or ran out of fuel stays broken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
from llguidance import LLExecutor, LLMatcher, LLParserLimits, LLTokenizer
from llguidance._tokenizer import TokenizerWrapper

from .closing_search import ClosingFinder
from .gbnf import lark_of_gbnf
from .llguidance_errors import readable_error
from .matcher import NO_TEXT, Bitmask, GrammarError
from .prepared import PreparedForm, PreparedGrammar
from .spec import MAX_WHITESPACE, JsonWhitespace
from .structural_tag import NO_FORCING, lark_of_structural_tag
from .vocabulary import Vocabulary

# What one grammar may cost: about 25 ms of regex work to build, 5 ms in one step, and 100 MB of
# lexer states. The library's own limits, but for the last (a fifth) and the second (a third).
_LIMITS = LLParserLimits(
    initial_lexer_fuel=1_000_000,
    step_lexer_fuel=70_000,
    step_max_items=50_000,
    max_lexer_states=50_000,
    max_grammar_size=500_000,
    verbose_errors=False,
)
# Measured: 45 kB for a grammar of 550 characters, 180 kB with a matcher that was used.
_BASE_BYTES = 40_000
_BYTES_PER_CHARACTER = 250
# Forced texts whose tokens are kept: 2 MB at most.
_TEXTS_KEPT = 4_096
_LONGEST_KEPT = 200  # bytes
FEW_ROWS = 8  # handing so few to the library's threads costs more than filling them

_WHITESPACE: dict[JsonWhitespace, dict[str, Any]] = {
    JsonWhitespace.COMPACT: {
        "whitespace_flexible": False,
        "item_separator": ",",
        "key_separator": ":",
    },
    JsonWhitespace.SPACED: {
        "whitespace_flexible": False,
        "item_separator": ", ",
        "key_separator": ": ",
    },
    JsonWhitespace.BOUNDED: {"whitespace_pattern": rf"[\x20\x0A\x0D\x09]{{1,{MAX_WHITESPACE}}}"},
    JsonWhitespace.UNBOUNDED: {"whitespace_pattern": r"[\x20\x0A\x0D\x09]+"},
}


class LlguidanceEngine:
    """Compiles grammars for one vocabulary."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self._tokenizer = LLTokenizer(
            TokenizerWrapper(_TokenSource(vocabulary)), eos_token=list(vocabulary.end_ids)
        )

    def compile(self, prepared: PreparedGrammar) -> LlguidanceGrammar:
        """Raises GrammarError, also for a grammar that no text can satisfy."""
        source = grammar_source(prepared)

        def compiled() -> LLMatcher:
            return LLMatcher(self._tokenizer, source.text, log_level=0, limits=_LIMITS)

        prototype = compiled()
        _raise_if_broken(prototype)
        # A grammar without any text (a $ref that leads to itself) breaks at its first mask only.
        row = np.zeros(self.vocabulary.bitmask_words, np.uint32)
        prototype.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)
        _raise_if_broken(prototype)
        if not row.any():
            raise GrammarError(NO_TEXT)
        return LlguidanceGrammar(self.vocabulary, prototype, compiled, source, prepared)


@dataclass(frozen=True, slots=True)
class GrammarSource:
    """What the library compiles.

    forces: whether forced text may be asked for. In a Lark grammar from outside a chain of it may
    have no end, as terminals take all they can, and the library follows it without a bound.
    """

    text: str
    forces: bool


class LlguidanceGrammar:
    """One compiled grammar: a matcher at the start, never moved, of which copies are made.

    The copies share what the library remembers of lexer states, and the bound on it: a long text
    in one of them may use it up for all. Then new ones are made of a fresh compile.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        prototype: LLMatcher,
        compiled: Callable[[], LLMatcher],
        source: GrammarSource,
        prepared: PreparedGrammar,
    ) -> None:
        self.vocabulary = vocabulary
        self.forces = source.forces
        self._prototype: LLMatcher | None = prototype
        self.compiled = compiled
        self.num_bytes = _BASE_BYTES + _BYTES_PER_CHARACTER * len(source.text)
        self.dropped = prepared.dropped
        self.closing = ClosingFinder(vocabulary, prepared)

    def matcher(self) -> LlguidanceMatcher:
        """A new matcher at the start."""
        if self._prototype is None:
            self._prototype = self.compiled()
        return LlguidanceMatcher(self, self._prototype.deep_copy())

    def wear_out(self) -> None:
        """Make no more copies of the present prototype: what they share is used up."""
        self._prototype = None


class LlguidanceMatcher:
    """See matcher.Matcher. fill raises GrammarError when a step would cost too much."""

    __slots__ = ("_ended", "_grammar", "_is_apart", "_native", "_tokens", "_vocabulary")

    def __init__(
        self,
        grammar: LlguidanceGrammar,
        native: LLMatcher,
        tokens: Sequence[int] = (),
        ended: bool = False,
    ) -> None:
        self._grammar = grammar
        self._vocabulary = grammar.vocabulary
        self._native = native
        self._tokens = list(tokens)
        self._ended = ended
        self._is_apart = False  # shares nothing with other matchers

    @property
    def is_finished(self) -> bool:
        """Whether an end token was accepted."""
        return self._ended

    @property
    def is_at_end(self) -> bool:
        """Whether the text is complete, and nothing but an end token may follow."""
        return not self._ended and bool(self._native.is_stopped() and not self._native.is_error())

    def fill(self, bitmask: Bitmask) -> None:
        """Write the legal next ids."""
        assert not self._ended, "fill of a finished matcher"
        self._native.unsafe_compute_mask_ptr(bitmask.ctypes.data, bitmask.nbytes)
        _raise_if_broken(self._native)

    @staticmethod
    def fill_rows(
        matchers: Sequence[tuple[int, LlguidanceMatcher]],
        bitmask: npt.NDArray[np.uint32],
        threads: int,
    ) -> list[int]:
        """Fill the given rows of bitmask [R, W], many in one call; returns those that broke."""
        rows = [(matcher._native, row) for row, matcher in matchers]
        start, stride = bitmask.ctypes.data, bitmask.strides[0]
        if threads == 1 or len(rows) <= FEW_ROWS:
            for native, row in rows:
                native.unsafe_compute_mask_ptr(start + row * stride, stride)
        else:
            _executor(threads).unsafe_compute_mask_ptr(rows, start, stride, len(bitmask))
        return [row for native, row in rows if native.is_error()]

    def accept(self, token_ids: Sequence[int]) -> int:
        """Take the legal ones of token_ids up to the first that is not."""
        if self._ended:
            return 0
        ids = list(token_ids)
        num_text = self._num_before_end(ids)
        taken = self._native.try_consume_tokens(ids[:num_text]) if num_text else 0
        at_end = taken == num_text < len(ids) and ids[num_text] in self._vocabulary.end_ids
        if at_end and self._native.is_accepting():
            self._ended = True
            taken += 1
        self._tokens += ids[:taken]
        return taken

    def rollback(self, num_tokens: int) -> None:
        """Undo the last accepted tokens."""
        assert 0 <= num_tokens <= len(self._tokens), (num_tokens, len(self._tokens))
        del self._tokens[len(self._tokens) - num_tokens :]
        if num_tokens and self._ended:
            self._ended = False
            num_tokens -= 1
        if num_tokens:
            self._native.rollback(num_tokens)

    def fork(self) -> LlguidanceMatcher:
        """An independent matcher in the same state."""
        return LlguidanceMatcher(self._grammar, self._native.deep_copy(), self._tokens, self._ended)

    def renew(self) -> bool:
        """Go on with a compile of its own, in the same state; once, if it leads to that state."""
        if self._is_apart or self._ended:
            return False
        self._is_apart = True
        self._grammar.wear_out()
        self._native = self._grammar.compiled()
        return bool(self._native.try_consume_tokens(self._tokens) == len(self._tokens))

    def forced_tokens(self, limit: int) -> list[int]:
        """The tokens that must come next, as the tokenizer cuts them; an end token at the end."""
        if self._ended or limit <= 0 or not self._grammar.forces:
            return []
        if self._native.is_stopped():
            _raise_if_broken(self._native)
            return [self._vocabulary.end_ids[0]]  # the text is complete, and nothing may be added
        ids = self._native.compute_ff_tokens()[:limit]
        return ids[: self._num_before_end(ids)]

    def closing_tokens(self, limit: int, enough: int = 0) -> list[int] | None:
        """A short legal completion, the end token included."""
        return self._grammar.closing.find(self, limit, enough, self._tokens)

    def _num_before_end(self, ids: list[int]) -> int:
        """How many ids come before the first end token or id outside the vocabulary."""
        end_ids, size = self._vocabulary.end_ids, self._vocabulary.size
        for index, token_id in enumerate(ids):
            if token_id in end_ids or not 0 <= token_id < size:
                return index
        return len(ids)


class _TokenSource:
    """The vocabulary in the form that the library's tokenizer wrapper reads."""

    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._encode = vocabulary.encode
        self._encode_again = lru_cache(_TEXTS_KEPT)(vocabulary.encode)
        self.eos_token_id = vocabulary.end_ids[0]
        self.special_token_ids = sorted(vocabulary.special)
        self.tokens = [
            token if vocabulary.is_text(i) else vocabulary.special.get(i, "").encode()
            for i, token in enumerate(vocabulary.tokens)
        ]

    def __call__(self, text: bytes) -> list[int]:
        # Forced text, a key most often: it comes again with each answer to the same schema.
        encode = self._encode_again if len(text) <= _LONGEST_KEPT else self._encode
        return list(encode(text.decode("utf-8")))


def grammar_source(prepared: PreparedGrammar) -> GrammarSource:
    """Raises GrammarError for a text that cannot be read."""
    text, options = prepared.text, _WHITESPACE[prepared.whitespace]
    if prepared.form is PreparedForm.JSON_SCHEMA:
        overrides: Any = options  # the library's own type allows each of the keys
        try:
            text = LLMatcher.grammar_from_json_schema(text, overrides=overrides)
        except ValueError as error:
            raise GrammarError(f"the schema cannot be read: {error}") from None
        return GrammarSource(text, forces=True)
    if prepared.form is PreparedForm.REGEX:
        return GrammarSource(LLMatcher.grammar_from_regex(text), forces=True)
    if prepared.form is PreparedForm.STRUCTURAL_TAG:
        text = lark_of_structural_tag(text, options)
    if prepared.form is PreparedForm.EBNF:
        text = f"{lark_of_gbnf(text)}{NO_FORCING}\n"
    return GrammarSource(LLMatcher.grammar_from_lark(text), forces=NO_FORCING not in text)


def _raise_if_broken(native: LLMatcher) -> None:
    if native.is_error():
        raise GrammarError(readable_error(native.get_error()))


@lru_cache(maxsize=8)
def _executor(threads: int) -> LLExecutor:
    return LLExecutor(num_threads=threads)
