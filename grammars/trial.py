"""try_out: follow a compiled grammar for a while, before anybody waits for what it allows.

Some grammars compile, and become too costly, or lead to a place where nothing can follow, a few
tokens later: in the middle of an answer. So a short whole output is gone through, and at places
where nearly any text may stand some text is tried. What is found on the way is kept with the
grammar: the output is the one that an answer near the end of its budget is finished by.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

import numpy as np
import numpy.typing as npt

from .closing_hints import closing_hints
from .closing_search import TooCostly, closing_help, find_whole
from .compile import compile_grammar
from .matcher import Bitmask, Grammar, GrammarError, Matcher
from .prepared import PreparedGrammar, Trial
from .thinking import ThinkingGrammar, answer_of
from .vocabulary import Vocabulary

MAX_TOKENS = 400  # of the output that is gone through
MAX_PLACES = 6  # at which text is tried, all of them different
TEXT_TOKENS = 12
_FREE_CHOICE = 1_000  # legal tokens of a place where nearly any text may stand
_MOST_SHOWN = 60  # characters of the output in an error


def try_out(prepared: PreparedGrammar, vocabulary: Vocabulary) -> PreparedGrammar:
    """Return prepared with its trial, having seen it compile and followed it.

    Raises GrammarError, also when an engine's limits are met within the first tokens.
    """
    grammar: Grammar | None = compile_grammar(replace(prepared, trial=None), vocabulary)
    if isinstance(grammar, ThinkingGrammar):
        grammar = grammar.answer
    answer = answer_of(prepared)
    if grammar is None or answer is None:
        return prepared
    hints = closing_hints(answer)
    walk = _Walk(grammar, vocabulary)
    try:
        known = closing_help(answer, hints, vocabulary)
        closing = find_whole(grammar.matcher(), vocabulary, known)
    except TooCostly as error:
        raise walk.error(error.path, str(error)) from None
    walk.run(closing or [])
    found = None if closing is None else tuple(closing)
    return replace(prepared, trial=Trial(found, tuple(hints)))


class _Walk:
    def __init__(self, grammar: Grammar, vocabulary: Vocabulary) -> None:
        self._grammar = grammar
        self._vocabulary = vocabulary
        self._mask: Bitmask = np.zeros(vocabulary.bitmask_words, np.uint32)
        self._random = Random(0)  # the same grammar is taken or refused every time

    def run(self, closing: list[int]) -> None:
        """Go along closing, with text at places that are free for it."""
        matcher = self._grammar.matcher()
        path: list[int] = []
        seen: set[bytes] = set()
        for token_id in [*closing[:MAX_TOKENS], None]:
            if matcher.is_finished:
                break
            num_legal = len(self._legal(matcher, path))
            kind = self._mask.tobytes()
            is_new = num_legal >= _FREE_CHOICE and kind not in seen
            if (is_new or token_id is None) and len(seen) < MAX_PLACES:
                seen.add(kind)
                self._try_text(matcher.fork(), list(path))
            if token_id is None:
                break
            self._take(matcher, token_id, path)

    def _try_text(self, matcher: Matcher, path: list[int]) -> None:
        for _ in range(TEXT_TOKENS):
            if matcher.is_finished:
                return
            legal = self._legal(matcher, path)
            self._take(matcher, int(legal[self._random.randrange(len(legal))]), path)

    def _legal(self, matcher: Matcher, path: list[int]) -> npt.NDArray[np.int64]:
        try:
            matcher.fill(self._mask)
        except GrammarError as error:
            raise self.error(path, str(error)) from None
        found = np.flatnonzero(np.unpackbits(self._mask.view(np.uint8), bitorder="little"))
        if not len(found):
            raise self.error(path, "nothing can follow")
        return found

    def _take(self, matcher: Matcher, token_id: int, path: list[int]) -> None:
        if not matcher.accept([token_id]):
            raise self.error([*path, token_id], "the state becomes too costly")
        path.append(token_id)

    def error(self, path: Sequence[int], reason: str) -> GrammarError:
        text = self._vocabulary.joined(path).decode("utf-8", "replace")
        shown = text if len(text) <= _MOST_SHOWN else f"...{text[-_MOST_SHOWN:]}"
        return GrammarError(
            f"the grammar cannot be followed after the output {shown!r}: {reason}; simplify the "
            "patterns, formats or repeats that hold there"
        )
