"""xgrammar behind the interface of matcher.py.

Importing it brings torch. What it does differently is hidden here: control tokens are spelled so
that they never match text, JSON strings have one spelling per character, so that neither a lone
surrogate nor a second spelling of a declared key gets through, and forced text is cut into tokens
as the tokenizer would, which are then the only legal ones.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import xgrammar as xgr

from .canonical_cut import CanonicalCut, canonical_cut
from .closing_choices import legal_ids
from .closing_search import ClosingFinder
from .matcher import NO_TEXT, Bitmask, GrammarError
from .prepared import PreparedForm, PreparedGrammar
from .spec import MAX_WHITESPACE, JsonWhitespace
from .vocabulary import NOT_TEXT, Vocabulary

_WHITESPACE: dict[JsonWhitespace, dict[str, Any]] = {
    JsonWhitespace.COMPACT: {"any_whitespace": False, "separators": (",", ":")},
    JsonWhitespace.SPACED: {"any_whitespace": False, "separators": (", ", ": ")},
    JsonWhitespace.BOUNDED: {"any_whitespace": True, "max_whitespace_cnt": MAX_WHITESPACE},
    JsonWhitespace.UNBOUNDED: {"any_whitespace": True},
}
# The library's rule for what may follow a backslash allows any \uXXXX; its class for strings with a
# maxLength allows raw control characters.
_ESCAPE_RULE = re.compile(r"^basic_escape ::= .*$", re.MULTILINE)
_ONE_SPELLING = (
    r'basic_escape ::= (([\"\\bfnrt]) | ("u00" (("0" [0-7be-f]) | ("1" [0-9a-f]) | ("7f"))))'
)
_LENGTH_CLASS, _JSON_CLASS = r"[^\"\\\r\n]", r"[^\0-\x1f\"\\]"
# In its own notation \x takes all hexadecimal digits that follow, yet it prints two.
_SHORT_ESCAPE = re.compile(r"(\\\\)|\\x([0-9a-f]{2})")
# Read as nothing or as literals by the library, instead of being refused.
_LOOK_AROUND = re.compile(r"\(\?(?:=|!|<[=!])|(?<!\\)(?:\\\\)*\\[bBAzZ1-9]")


class XgrammarEngine:
    """Compiles grammars for one vocabulary."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        info = xgr.TokenizerInfo(
            _spelled(vocabulary),
            xgr.VocabType.RAW,
            vocab_size=vocabulary.size,
            stop_token_ids=list(vocabulary.end_ids),
        )
        # Its own cache makes large grammars several times slower to compile.
        self._compiler = xgr.GrammarCompiler(info, max_threads=1, cache_enabled=False)

    def compile(self, prepared: PreparedGrammar) -> XgrammarGrammar:
        """Raises GrammarError, also for a grammar that no text can satisfy."""
        try:
            grammar = XgrammarGrammar(self.vocabulary, self._compiled(prepared), prepared)
            row = np.zeros(self.vocabulary.bitmask_words, np.uint32)
            grammar.matcher().fill(row)
        except (RuntimeError, ValueError, TypeError) as error:
            if isinstance(error, GrammarError):
                raise
            raise GrammarError(_first_line(str(error))) from None
        if not row.any():
            raise GrammarError(NO_TEXT)
        return grammar

    def _compiled(self, prepared: PreparedGrammar) -> xgr.CompiledGrammar:
        text = prepared.text
        if prepared.form is PreparedForm.JSON_SCHEMA:
            options = _WHITESPACE[prepared.whitespace]
            grammar = xgr.Grammar.from_json_schema(text, strict_mode=False, **options)
            return self._compiler.compile_grammar(xgr.Grammar.from_ebnf(_corrected(str(grammar))))
        if prepared.form is PreparedForm.REGEX:
            if found := _LOOK_AROUND.search(text):
                raise GrammarError(f"{found.group()} in a regular expression is not supported")
            return self._compiler.compile_regex(text)
        if prepared.form is PreparedForm.EBNF:
            return self._compiler.compile_grammar(text)
        if prepared.form is PreparedForm.LARK:
            return self._compiler.compile_lark(text)
        return self._compiler.compile_structural_tag(text)


class XgrammarGrammar:
    """One compiled grammar."""

    def __init__(
        self, vocabulary: Vocabulary, compiled: xgr.CompiledGrammar, prepared: PreparedGrammar
    ) -> None:
        self.vocabulary = vocabulary
        self.cut: CanonicalCut = canonical_cut(vocabulary)
        self.dropped = prepared.dropped
        self.closing = ClosingFinder(vocabulary, prepared)
        self._compiled = compiled

    @property
    def num_bytes(self) -> int:
        """As the library counts it."""
        return int(self._compiled.memory_size_bytes)

    def matcher(self) -> XgrammarMatcher:
        """A new matcher at the start."""
        return XgrammarMatcher(self, xgr.GrammarMatcher(self._compiled), [])


class XgrammarMatcher:
    """See matcher.Matcher."""

    __slots__ = ("_grammar", "_history", "_native")

    def __init__(
        self, grammar: XgrammarGrammar, native: xgr.GrammarMatcher, history: list[int]
    ) -> None:
        self._grammar = grammar
        self._native = native
        self._history = history

    @property
    def is_finished(self) -> bool:
        """Whether an end token was accepted."""
        return bool(self._native.is_terminated())

    def fill(self, bitmask: Bitmask) -> None:
        """Write the legal next ids."""
        assert not self.is_finished, "fill of a finished matcher"
        self._fill(bitmask)
        self._narrow(bitmask)

    def _fill(self, bitmask: Bitmask) -> None:
        # The library's type wants its own name for what DLPack allows: any array.
        row: Any = bitmask.view(np.int32).reshape(1, -1)
        self._native.fill_next_token_bitmask(row, 0)
        bitmask[-1] &= self._grammar.vocabulary.last_word

    @staticmethod
    def fill_rows(
        matchers: Sequence[tuple[int, XgrammarMatcher]],
        bitmask: npt.NDArray[np.uint32],
        threads: int,
    ) -> list[int]:
        """Fill the given rows of bitmask [R, W] in one call; none can break."""
        rows: Any = bitmask.view(np.int32)
        indices = [row for row, _ in matchers]
        _batch(threads).batch_fill_next_token_bitmask(
            [matcher._native for _, matcher in matchers], rows, indices
        )
        # The library sets the bits past the last id.
        bitmask[indices, -1] &= matchers[0][1]._grammar.vocabulary.last_word
        for row, matcher in matchers:
            matcher._narrow(bitmask[row])
        return []

    def _narrow(self, bitmask: Bitmask) -> None:
        """Where text is forced leave the tokenizer's own token of it: what a jump would take."""
        text = self._native.find_jump_forward_string()
        ids = self._grammar.cut.tokens(self._history, text) if text else []
        if ids:
            bitmask[:] = 0
            bitmask[ids[0] // 32] = np.uint32(1 << ids[0] % 32)

    def accept(self, token_ids: Sequence[int]) -> int:
        """Take the legal ones of token_ids up to the first that is not."""
        native, size = self._native, self._grammar.vocabulary.size
        for taken, token_id in enumerate(token_ids):
            legal = 0 <= token_id < size and not native.is_terminated()
            if not legal or not native.accept_token(token_id):
                return taken
            self._history.append(token_id)
        return len(token_ids)

    def rollback(self, num_tokens: int) -> None:
        """Undo the last accepted tokens."""
        assert 0 <= num_tokens <= len(self._history), (num_tokens, len(self._history))
        if num_tokens:
            self._native.rollback(num_tokens)
            del self._history[-num_tokens:]

    def renew(self) -> bool:
        """There is nothing to rebuild: matchers share nothing that wears out."""
        return False

    def fork(self) -> XgrammarMatcher:
        """An independent matcher in the same state."""
        return XgrammarMatcher(self._grammar, self._native.fork(), list(self._history))

    def forced_tokens(self, limit: int) -> list[int]:
        """The tokens that must come next, as the tokenizer cuts them; an end token at the end."""
        if limit <= 0 or self.is_finished:
            return []
        if self.is_at_end:
            return [self._grammar.vocabulary.end_ids[0]]
        text = self._native.find_jump_forward_string()
        return self._grammar.cut.tokens(self._history, text)[:limit] if text else []

    @property
    def is_at_end(self) -> bool:
        """Whether the text is complete, and nothing but an end token may follow."""
        if self.is_finished or not self._native.is_completed():
            return False
        row = np.zeros(self._grammar.vocabulary.bitmask_words, np.uint32)
        self._fill(row)
        return legal_ids(row) == list(self._grammar.vocabulary.end_ids)

    def closing_tokens(self, limit: int, enough: int = 0) -> list[int] | None:
        """A short legal completion, the end token included."""
        return self._grammar.closing.find(self, limit, enough, self._history)


def _spelled(vocabulary: Vocabulary) -> list[bytes]:
    """The tokens for matching; others than text begin with a byte that no text has."""
    return [
        token if vocabulary.is_text(i) else NOT_TEXT + b"[%d]" % i
        for i, token in enumerate(vocabulary.tokens)
    ]


def _corrected(rules: str) -> str:
    """The library's rules for a schema, with JSON strings that have one spelling."""
    rules = _SHORT_ESCAPE.sub(lambda m: m.group(1) or f"\\u00{m.group(2)}", rules)
    rules = _ESCAPE_RULE.sub(lambda _: _ONE_SPELLING, rules)
    return rules.replace(_LENGTH_CLASS, _JSON_CLASS)


def _first_line(text: str) -> str:
    """The library's message without the place in its source."""
    line = text.strip().partition("\n")[0]
    return re.sub(r"^\[[^\]]*\] \S+: ", "", line) or "the grammar cannot be compiled"


@lru_cache(maxsize=8)
def _batch(threads: int) -> xgr.BatchGrammarMatcher:
    return xgr.BatchGrammarMatcher(threads)
