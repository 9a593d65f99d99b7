"""What following a grammar shows before anybody waits for it."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from support.bundled_tokenizer import bundled_vocabulary

from runtime.grammars.compile import compile_grammar
from runtime.grammars.matcher import GrammarError
from runtime.grammars.prepare import prepare
from runtime.grammars.spec import GrammarKind, GrammarSpec
from runtime.grammars.thinking import ThinkingRule, thinking_spec
from runtime.grammars.trial import try_out

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
}


def schema_spec(schema: Any) -> GrammarSpec:
    return GrammarSpec(GrammarKind.JSON_SCHEMA, json.dumps(schema))


def test_output_found_is_whole_and_what_a_new_matcher_would_be_closed_by() -> None:
    vocabulary = bundled_vocabulary()
    prepared = try_out(prepare(schema_spec(PERSON)), vocabulary)
    assert prepared.trial is not None and prepared.trial.closing is not None
    closing = list(prepared.trial.closing)

    matcher = compile_grammar(prepared, vocabulary).matcher()

    assert matcher.closing_tokens(len(closing)) == closing
    assert matcher.closing_tokens(len(closing) - 1) is None
    assert matcher.accept(closing) == len(closing)
    assert matcher.is_finished
    assert set(json.loads(vocabulary.joined(closing[:-1]))) == {"name", "age"}


def test_the_place_at_the_start_costs_no_search_after_the_trial() -> None:
    vocabulary = bundled_vocabulary()
    wide = {
        "type": "object",
        "properties": {f"p{i}": {"enum": [f"v{i} {j}" for j in range(40)]} for i in range(60)},
        "required": [f"p{i}" for i in range(60)],
    }
    prepared = try_out(prepare(schema_spec(wide)), vocabulary)
    costs = []

    for _ in range(3):
        matcher = compile_grammar(prepared, vocabulary).matcher()
        began = time.thread_time()
        matcher.closing_tokens(4096)
        costs.append(time.thread_time() - began)

    # The least of three: a garbage collection of the whole test run may fall into one of them.
    assert min(costs) < 0.002


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (
            schema_spec({"type": "string", "format": "email", "not": {"pattern": "a{3}"}}),
            "cannot be followed after the output",
        ),
        (
            schema_spec(
                {
                    "type": "object",
                    "properties": {
                        "id": {"type": "integer"},
                        "mail": {"type": "string", "format": "email", "not": {"pattern": "a{3}"}},
                    },
                    "required": ["id", "mail"],
                }
            ),
            '"mail"',
        ),
        (GrammarSpec(GrammarKind.LARK, 'start: "x" A\nA: /a[0-9]/ & /ab/'), "after the output 'x'"),
        (GrammarSpec(GrammarKind.LARK, 'start: "a" x\nx: x "b"'), "no text satisfies"),
    ],
)
def test_a_grammar_that_cannot_be_followed_is_refused_with_the_place(
    spec: GrammarSpec, words: str
) -> None:
    with pytest.raises(GrammarError) as refused:
        try_out(prepare(spec), bundled_vocabulary())
    assert words in str(refused.value)
    assert "NoExtension" not in str(refused.value)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (GrammarKind.REGEX, "[^\\s\\S]"),
        (GrammarKind.LARK, "start: A\nA: /a/ & /b/"),
        (GrammarKind.LARK, 'start: x\nx: x "a"'),
    ],
)
def test_a_grammar_without_any_text_is_refused_in_plain_words(kind: GrammarKind, text: str) -> None:
    with pytest.raises(GrammarError, match="no text satisfies this grammar"):
        try_out(prepare(GrammarSpec(kind, text)), bundled_vocabulary())


def test_a_bad_regex_is_refused_with_the_reason_and_without_our_rewriting() -> None:
    with pytest.raises(GrammarError, match="unclosed group") as refused:
        try_out(prepare(GrammarSpec(GrammarKind.REGEX, "ab(c")), bundled_vocabulary())
    assert "at 1(" not in str(refused.value)


def test_thinking_is_tried_by_its_answer() -> None:
    rule = ThinkingRule("<think>", "</think>", is_open=True)
    vocabulary = bundled_vocabulary()

    free = try_out(prepare(thinking_spec(rule, None)), vocabulary)
    bound = try_out(prepare(thinking_spec(rule, schema_spec(PERSON))), vocabulary)

    assert free.trial is None
    assert bound.trial is not None and bound.trial.closing is not None
    closing = compile_grammar(bound, vocabulary).matcher().closing_tokens(100)
    assert closing is not None
    assert vocabulary.joined(closing).startswith(b"</think>")
    assert tuple(closing[-len(bound.trial.closing) :]) == bound.trial.closing
