"""Texts as walks through a grammar: the tokens that the model's tokenizer cuts them into."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass

from runtime.grammars.compile import compile_grammar
from runtime.grammars.matcher import Grammar, GrammarError
from runtime.grammars.prepare import prepare
from runtime.grammars.spec import GrammarKind, GrammarSpec, JsonWhitespace
from runtime.grammars.vocabulary import Vocabulary

from .schemas import Case

# How a text is written under each policy. Where whitespace is free the text has none, which is
# what the grammar makes of it too when it forces.
_SEPARATORS = {JsonWhitespace.SPACED: (", ", ": ")}
_NO_SPACE = (",", ":")


@dataclass(frozen=True, slots=True)
class Walk:
    """A text of a grammar: its tokens, an end token last."""

    grammar: Grammar
    token_ids: list[int]


@dataclass(slots=True)
class CompiledCases:
    """What became of cases: the grammars of those that are served, and walks through them."""

    whitespace: JsonWhitespace
    walks: list[Walk]
    grammars: dict[str, Grammar]
    prepare_ms: list[float]
    compile_ms: list[float]
    num_cases: int
    num_values_refused: int = 0


def compile_cases(
    cases: list[Case], vocabulary: Vocabulary, whitespace: JsonWhitespace
) -> CompiledCases:
    """Compile all cases and cut their values; times are of CPU, in milliseconds."""
    compile_grammar(prepare(_spec({"type": "null"}, whitespace)), vocabulary)  # the engine's tables
    found = CompiledCases(whitespace, [], {}, [], [], len(cases))
    for case in cases:
        spec = _spec(case.schema, whitespace)
        started = time.process_time()
        try:
            prepared = prepare(spec)
            checked = time.process_time()
            grammar = compile_grammar(prepared, vocabulary)
        except GrammarError:
            continue
        ended = time.process_time()
        found.prepare_ms.append((checked - started) * 1e3)
        found.compile_ms.append((ended - checked) * 1e3)
        found.grammars[case.name] = grammar
        for orders in case.values:
            ids = _cut(orders, grammar, vocabulary, whitespace)
            if ids is None:
                found.num_values_refused += 1
            else:
                found.walks.append(Walk(grammar, ids))
    return found


def _spec(schema: object, whitespace: JsonWhitespace) -> GrammarSpec:
    text = json.dumps(schema, ensure_ascii=False)
    return GrammarSpec(GrammarKind.JSON_SCHEMA, text, whitespace)


def _cut(
    orders: tuple[object, ...], grammar: Grammar, vocabulary: Vocabulary, whitespace: JsonWhitespace
) -> list[int] | None:
    """The tokens of the first order that the grammar takes; None if it takes none."""
    separators = _SEPARATORS.get(whitespace, _NO_SPACE)
    for value in orders:
        text = json.dumps(value, ensure_ascii=False, separators=separators)
        ids = [*vocabulary.encode(text), vocabulary.end_ids[0]]
        if grammar.matcher().accept(ids) == len(ids):
            return ids
    return None
