"""compile_grammar: from a checked grammar to one that can be matched, by the engine it names.

The engines are imported when first used: xgrammar brings torch with it.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Protocol

from .matcher import Grammar
from .prepared import GrammarEngine, PreparedForm, PreparedGrammar
from .thinking import compile_thinking
from .vocabulary import Vocabulary


class Engine(Protocol):
    """One library for constrained decoding, for one vocabulary."""

    def compile(self, prepared: PreparedGrammar) -> Grammar:
        """Raises GrammarError."""
        ...


def compile_grammar(prepared: PreparedGrammar, vocabulary: Vocabulary) -> Grammar:
    """Compile prepared for a model's tokens. Raises GrammarError.

    May take long for a hostile grammar: call it where nothing waits for it. The first call for
    an engine also builds the engine's own table of the vocabulary (about 0.3 s).
    """
    if prepared.form is PreparedForm.THINKING:
        return compile_thinking(
            prepared, vocabulary, lambda answer: compile_grammar(answer, vocabulary)
        )
    return engine_for(prepared.engine, vocabulary).compile(prepared)


@lru_cache(maxsize=4)
def engine_for(engine: GrammarEngine, vocabulary: Vocabulary) -> Engine:
    """The engine for vocabulary, made at the first call."""
    if engine is GrammarEngine.LLGUIDANCE:
        from .llguidance_engine import LlguidanceEngine

        return LlguidanceEngine(vocabulary)
    from .xgrammar_engine import XgrammarEngine

    return XgrammarEngine(vocabulary)
