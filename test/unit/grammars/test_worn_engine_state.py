"""A text that uses up what matchers of one grammar share costs its own request at most."""

from __future__ import annotations

import random

from support.byte_vocabulary import byte_vocabulary

from runtime.grammars.compile import compile_grammar
from runtime.grammars.matcher import Grammar
from runtime.grammars.prepare import prepare
from runtime.grammars.spec import GrammarKind, GrammarSpec
from runtime.srt.scheduling.grammar_rows import GrammarState

A, B = ord("a"), ord("b")
# Each text of 20 letters leads to another state of the engine's automaton.
MANY_STATES = "(a|b)*a(a|b){20}"
VOCABULARY = byte_vocabulary()


def wide_grammar() -> Grammar:
    return compile_grammar(prepare(GrammarSpec(GrammarKind.REGEX, MANY_STATES)), VOCABULARY)


def wear_out(grammar: Grammar) -> Grammar:
    """Let one matcher of grammar go as far as the engine lets it."""
    draw = random.Random(0)
    hungry = grammar.matcher()
    while hungry.accept([draw.choice((A, B)) for _ in range(100)]) == 100:
        pass
    return grammar


def test_one_matcher_can_use_up_what_all_share() -> None:
    """If this fails the engine has been mended, and renewal can go."""
    assert wear_out(wide_grammar()).matcher().accept([B]) == 0


def test_matcher_goes_on_where_it_stood_after_renewal_and_new_ones_are_fresh() -> None:
    grammar = wide_grammar()
    standing = grammar.matcher()
    standing.accept([A, B, A])
    wear_out(grammar)
    assert standing.accept([B]) == 0

    assert standing.renew()

    assert standing.accept([B] * 30) == 30
    assert grammar.matcher().accept([A] * 30) == 30
    assert not standing.renew(), "once is enough: it shares nothing any more"


def test_request_in_a_worn_grammar_gets_all_its_tokens() -> None:
    state = GrammarState(wear_out(wide_grammar()), VOCABULARY.size, jumps=True)

    taken = [state.take(B, 1000 - i).token_id for i in range(50)]

    assert taken == [B] * 50
