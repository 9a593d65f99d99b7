"""Thinking before an answer: what is legal when, the budget, and going back."""

from __future__ import annotations

import random

import numpy as np
import pytest
from support.byte_vocabulary import END_ID, MARK_ID, allowed, byte_vocabulary, takes

from runtime.grammars.batch_fill import fill_batch
from runtime.grammars.compile import compile_grammar
from runtime.grammars.matcher import Grammar, Matcher
from runtime.grammars.prepare import prepare
from runtime.grammars.spec import GrammarKind, GrammarSpec
from runtime.grammars.thinking import ThinkingRule, thinking_spec

VOCABULARY = byte_vocabulary()
DIGITS = GrammarSpec(GrammarKind.REGEX, "[0-9]{2}")
OPEN = ThinkingRule("<think>", "</think>", is_open=True)
MAY_BEGIN = ThinkingRule("<think>", "</think>", is_open=False)


def compiled(rule: ThinkingRule, answer: GrammarSpec | None = DIGITS) -> Grammar:
    return compile_grammar(prepare(thinking_spec(rule, answer)), VOCABULARY)


def ids(text: str) -> list[int]:
    return VOCABULARY.encode(text)


def at(grammar: Grammar, text: str) -> Matcher:
    matcher = grammar.matcher()
    assert matcher.accept(ids(text)) == len(ids(text))
    return matcher


def limited(rule: ThinkingRule, max_tokens: int) -> ThinkingRule:
    return ThinkingRule(rule.opener, rule.closer, rule.is_open, max_tokens)


@pytest.mark.parametrize("text", ["hm {[\n</think>12", "</think>12", "a < b </thin </think>12"])
def test_thinking_is_free_and_the_answer_is_not(text: str) -> None:
    grammar = compiled(OPEN)

    assert takes(grammar, ids(text))
    assert not takes(grammar, ids(text[:-1]))
    assert not takes(grammar, ids(text.replace("12", "1x")))


def test_an_answer_must_come_so_thinking_cannot_end_the_output() -> None:
    assert END_ID not in allowed(compiled(OPEN).matcher(), VOCABULARY)
    assert END_ID in allowed(compiled(OPEN, None).matcher(), VOCABULARY)


def test_control_tokens_may_be_thought() -> None:
    assert MARK_ID in allowed(compiled(OPEN).matcher(), VOCABULARY)


def test_a_token_that_runs_past_the_closing_mark_into_the_answer_is_illegal() -> None:
    matcher = at(compiled(OPEN), "hm </think"[:-1] + "k")

    legal = allowed(matcher, VOCABULARY)

    assert {VOCABULARY.text_ids[one] for one in (b">", b">\n\n")} <= legal
    assert VOCABULARY.text_ids[b'>{"'] not in legal
    assert VOCABULARY.text_ids[b"</think> no"] not in allowed(compiled(OPEN).matcher(), VOCABULARY)


@pytest.mark.parametrize("text", ["12", "<think>hm</think>12", "<think></think>12"])
def test_thinking_that_may_begin_may_also_not(text: str) -> None:
    assert takes(compiled(MAY_BEGIN), ids(text))


@pytest.mark.parametrize("text", ["<think>12", "<thi12", "hm</think>12"])
def test_what_does_not_begin_thinking_must_be_the_answer(text: str) -> None:
    assert not takes(compiled(MAY_BEGIN), ids(text))


def test_an_answer_may_begin_like_the_opening_mark() -> None:
    grammar = compiled(MAY_BEGIN, GrammarSpec(GrammarKind.REGEX, "<th(e|ird>|think>)"))

    assert takes(grammar, list(b"<the"))
    assert takes(grammar, list(b"<think>x</think><third>"))
    assert not takes(grammar, list(b"<think>"))


@pytest.mark.parametrize(("rule", "start"), [(OPEN, ""), (MAY_BEGIN, "<think>")])
def test_a_used_up_budget_forces_the_closing_mark(rule: ThinkingRule, start: str) -> None:
    matcher = at(compiled(limited(rule, 3)), start + "abc")
    closer = ids("</think>")

    assert matcher.forced_tokens(10) == closer
    for token_id in closer:
        assert allowed(matcher, VOCABULARY) == {token_id}
        assert matcher.accept([ord("x")]) == 0
        assert matcher.accept([token_id]) == 1
    assert allowed(matcher, VOCABULARY) == set(b"0123456789")


def test_a_mark_that_is_half_written_when_the_budget_ends_is_completed() -> None:
    matcher = at(compiled(limited(OPEN, 2)), "a</")

    assert VOCABULARY.joined(matcher.forced_tokens(10)) == b"think>"


def test_a_budget_of_zero_means_no_thinking() -> None:
    matcher = compiled(limited(OPEN, 0)).matcher()

    assert matcher.forced_tokens(10) == ids("</think>")


def test_a_budget_alone_leaves_the_answer_free() -> None:
    matcher = at(compiled(limited(OPEN, 1), None), "a</think>")

    assert allowed(matcher, VOCABULARY) == set(range(VOCABULARY.size))
    assert matcher.accept(ids("anything")) == len(ids("anything"))
    assert matcher.forced_tokens(5) == []


def test_a_short_completion_closes_the_thinking_first() -> None:
    closing = at(compiled(OPEN), "hm ").closing_tokens(20)

    assert closing is not None
    assert VOCABULARY.joined(closing[:-1]).startswith(b"</think>")
    assert closing[-1] == END_ID and len(closing) == len(ids("</think>")) + 3


def test_no_completion_where_none_fits() -> None:
    assert at(compiled(OPEN), "hm ").closing_tokens(4) is None


@pytest.mark.parametrize("rule", [OPEN, MAY_BEGIN, limited(OPEN, 4)])
@pytest.mark.parametrize("answer", [DIGITS, None])
def test_rolling_back_and_forking_lead_to_the_same_places(
    rule: ThinkingRule, answer: GrammarSpec | None
) -> None:
    random_ = random.Random(3)
    grammar = compiled(rule, answer)
    texts = ["<think>hm</think>12", "12", "hm </think>34", "<th", "</think>5"]
    for _ in range(60):
        matcher = grammar.matcher()
        taken = ids(random_.choice(texts))
        taken = taken[: matcher.accept(taken)]
        num_back = random_.randint(0, len(taken))
        copy = matcher.fork()
        copy.rollback(num_back)
        fresh = grammar.matcher()
        fresh.accept(taken[: len(taken) - num_back])

        assert allowed(copy, VOCABULARY) == allowed(fresh, VOCABULARY)
        rest = taken[len(taken) - num_back :]
        assert copy.accept(rest) == len(rest)
        assert copy.is_finished == matcher.is_finished


def test_rows_are_filled_together_as_they_are_alone() -> None:
    grammar = compiled(limited(MAY_BEGIN, 2))
    matchers = [at(grammar, text) for text in ("", "<think>", "<think>ab", "1", "<think></think>")]
    matchers.append(compiled(OPEN, None).matcher())
    together = np.zeros((len(matchers), VOCABULARY.bitmask_words), dtype=np.uint32)
    alone = np.zeros_like(together)

    broken = fill_batch(matchers, together)
    for row, matcher in enumerate(matchers):
        matcher.fill(alone[row])

    assert broken == []
    assert (together == alone).all()
