"""A matcher after any accepts, rollbacks and forks, beside one that replays the tokens left."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.byte_vocabulary import byte_vocabulary
from support.grammar_rig import ENGINES, GrammarRig, closed_object

from runtime.grammars.matcher import Grammar, Matcher
from runtime.grammars.prepared import GrammarEngine

VOCABULARY = byte_vocabulary()
RIGS = {engine: GrammarRig(engine, VOCABULARY) for engine in ENGINES}
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["legal", "legal", "legal", "any", "back", "fork"]), st.integers(0, 999)
    ),
    max_size=40,
)


def grammars_of(rig: GrammarRig) -> list[Grammar]:
    item = {"enum": ["ab", "abc", 1, None]}
    schema = closed_object({"a": {"type": "array", "items": item}, "b": {"type": "string"}}, ["a"])
    return [
        rig.schema(schema),
        rig.regex("(ab|abc|a)*d{1,3}"),
        rig.ebnf('root ::= "(" root ")" | "[" root "]" | ""'),
    ]


GRAMMARS = {engine: grammars_of(rig) for engine, rig in RIGS.items()}


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.value)
@settings(max_examples=60, deadline=None)
@given(which=st.integers(0, 2), steps=STEPS)
def test_a_matcher_is_where_its_remaining_tokens_lead(
    engine: GrammarEngine, which: int, steps: list[tuple[str, int]]
) -> None:
    rig, grammar = RIGS[engine], GRAMMARS[engine][which]
    matcher: Matcher = grammar.matcher()
    taken: list[int] = []

    for action, number in steps:
        if action == "back":
            count = number % (len(taken) + 1)
            matcher.rollback(count)
            taken = taken[: len(taken) - count]
        elif action == "fork":
            left, matcher = matcher, matcher.fork()
            left.rollback(number % (len(taken) + 1))  # moves the one left behind only
        else:
            legal = set() if matcher.is_finished else rig.legal(matcher)
            options = sorted(legal) if action == "legal" and legal else range(VOCABULARY.size)
            token_id = options[number % len(options)]
            num_taken = matcher.accept([token_id])
            assert num_taken or token_id not in legal  # what a mask allows is accepted
            taken += [token_id] * num_taken

        replayed = grammar.matcher()
        assert replayed.accept(taken) == len(taken)
        assert matcher.is_finished == replayed.is_finished
        if not matcher.is_finished:
            assert rig.legal(matcher) == rig.legal(replayed)
            assert matcher.forced_tokens(8) == replayed.forced_tokens(8)


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.value)
@settings(max_examples=40, deadline=None)
@given(which=st.integers(0, 2), numbers=st.lists(st.integers(0, 999), max_size=25))
def test_whatever_was_taken_can_be_completed(
    engine: GrammarEngine, which: int, numbers: list[int]
) -> None:
    rig = RIGS[engine]
    matcher = GRAMMARS[engine][which].matcher()
    for number in numbers:
        if matcher.is_finished:
            break
        legal = sorted(rig.legal(matcher))
        assert legal
        assert matcher.accept([legal[number % len(legal)]]) == 1

    closing = matcher.closing_tokens(200)

    assert closing is not None
    assert matcher.accept(closing) == len(closing)
    assert matcher.is_finished
