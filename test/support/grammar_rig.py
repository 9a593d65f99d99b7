"""Grammars of either engine in a few words, for tests."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from runtime.grammars.closing_choices import legal_ids
from runtime.grammars.compile import compile_grammar
from runtime.grammars.matcher import Bitmask, Grammar, Matcher
from runtime.grammars.prepare import prepare
from runtime.grammars.prepared import GrammarEngine, PreparedForm, PreparedGrammar
from runtime.grammars.spec import GrammarKind, GrammarSpec, JsonWhitespace
from runtime.grammars.vocabulary import Vocabulary

ENGINES = list(GrammarEngine)


class GrammarRig:
    """Compiles for one engine and vocabulary."""

    def __init__(self, engine: GrammarEngine, vocabulary: Vocabulary) -> None:
        self.engine = engine
        self.vocabulary = vocabulary

    def compile(
        self,
        form: PreparedForm,
        text: str,
        whitespace: JsonWhitespace = JsonWhitespace.BOUNDED,
    ) -> Grammar:
        return compile_grammar(
            PreparedGrammar(self.engine, form, text, whitespace), self.vocabulary
        )

    def schema(self, schema: Any, whitespace: JsonWhitespace = JsonWhitespace.BOUNDED) -> Grammar:
        """As the engine itself reads a schema."""
        return self.compile(PreparedForm.JSON_SCHEMA, json.dumps(schema), whitespace)

    def regex(self, pattern: str) -> Grammar:
        return self.compile(PreparedForm.REGEX, pattern)

    def ebnf(self, text: str) -> Grammar:
        return self.compile(PreparedForm.EBNF, text)

    def served(self, schema: Any, whitespace: JsonWhitespace = JsonWhitespace.BOUNDED) -> Grammar:
        """As a request's schema is served: checked and rewritten first."""
        spec = GrammarSpec(GrammarKind.JSON_SCHEMA, json.dumps(schema), whitespace)
        return compile_grammar(prepare(spec), self.vocabulary)

    def legal(self, matcher: Matcher) -> set[int]:
        """The ids that may come next."""
        return set(legal_ids(mask_of(matcher, self.vocabulary)))

    def takes(self, grammar: Grammar, text: str) -> bool:
        """Whether text, cut by the tokenizer, is a whole text of grammar."""
        ids = self.vocabulary.encode(text)
        matcher = grammar.matcher()
        return matcher.accept([*ids, self.vocabulary.end_ids[0]]) == len(ids) + 1


def mask_of(matcher: Matcher, vocabulary: Vocabulary) -> Bitmask:
    """A filled bitmask."""
    mask = np.zeros(vocabulary.bitmask_words, np.uint32)
    matcher.fill(mask)
    return mask


def closed_object(properties: dict[str, Any], required: list[str] | None = None) -> dict[str, Any]:
    """An object of just these properties, all required unless said otherwise."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties) if required is None else required,
        "additionalProperties": False,
    }
