"""Both engines behind one interface: the same behaviour for the same grammars."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from support.bundled_tokenizer import (
    END_IDS,
    VOCAB_SIZE,
    bundled_tokenizer,
    bundled_vocabulary,
)
from support.grammar_rig import ENGINES, GrammarRig, closed_object, mask_of

from runtime.grammars.batch_fill import fill_batch
from runtime.grammars.matcher import GrammarError, Matcher
from runtime.grammars.prepared import GrammarEngine, PreparedForm
from runtime.grammars.spec import JsonWhitespace

STRING = {"type": "string"}
INTEGER = {"type": "integer"}
PERSON = closed_object({"name": STRING, "age": INTEGER})


@pytest.fixture(params=ENGINES, ids=lambda engine: engine.value)
def rig(request: pytest.FixtureRequest) -> GrammarRig:
    return GrammarRig(request.param, bundled_vocabulary())


def after(rig: GrammarRig, grammar: Any, text: str) -> Matcher:
    matcher: Matcher = grammar.matcher()
    ids = rig.vocabulary.encode(text)
    assert matcher.accept(ids) == len(ids), text
    return matcher


def test_control_tokens_are_never_legal_inside_a_string(rig: GrammarRig) -> None:
    matcher = after(rig, rig.schema(PERSON), '{"name": "a')

    legal = rig.legal(matcher)

    assert len(legal) > 40_000
    assert not legal & bundled_tokenizer().special_ids
    assert all(matcher.accept([i]) == 0 for i in bundled_tokenizer().special_ids)


def test_control_tokens_are_never_legal_in_any_text(rig: GrammarRig) -> None:
    matcher = after(rig, rig.regex("(.|\n)*x"), "a<|im_end|>b")

    assert not rig.legal(matcher) & bundled_tokenizer().special_ids


@pytest.mark.parametrize("vocab_size", [VOCAB_SIZE + 70, VOCAB_SIZE - 3_000])
@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.value)
def test_a_model_may_have_more_or_fewer_logits_than_tokens(
    engine: GrammarEngine, vocab_size: int
) -> None:
    rig = GrammarRig(engine, bundled_vocabulary(vocab_size))
    matcher = after(rig, rig.schema(PERSON), '{"name": "a')

    legal = rig.legal(matcher)

    assert len(mask_of(matcher, rig.vocabulary)) == (vocab_size + 31) // 32
    assert max(legal) < min(vocab_size, VOCAB_SIZE)
    assert matcher.accept([vocab_size + 1]) == 0
    assert matcher.accept([-1]) == 0


def test_after_the_end_of_the_text_only_end_tokens_are_legal(rig: GrammarRig) -> None:
    matcher = after(rig, rig.schema(PERSON), '{"name": "a", "age": 4}')

    assert rig.legal(matcher) == set(END_IDS)
    assert matcher.is_at_end
    assert matcher.forced_tokens(5) == [END_IDS[0]]
    assert matcher.accept(rig.vocabulary.encode("\n")) == 0


@pytest.mark.parametrize("end_id", END_IDS)
def test_each_end_token_ends_a_complete_text(rig: GrammarRig, end_id: int) -> None:
    matcher = after(rig, rig.schema(PERSON), '{"name": "a", "age": 4}')

    assert not matcher.is_finished
    assert matcher.accept([end_id, end_id]) == 1

    assert matcher.is_finished
    assert not matcher.is_at_end
    assert matcher.accept([end_id]) == 0
    assert matcher.accept(rig.vocabulary.encode("}")) == 0
    assert matcher.forced_tokens(5) == []
    assert matcher.closing_tokens(5) == []


def test_an_end_token_may_end_a_text_that_could_go_on(rig: GrammarRig) -> None:
    matcher = after(rig, rig.regex("[0-9]+"), "12")

    legal = rig.legal(matcher)

    assert set(END_IDS) < legal
    assert not matcher.is_at_end
    assert matcher.accept([END_IDS[1]]) == 1


@pytest.mark.parametrize("text", ["", '{"name"', '{"name": "a', '{"name": "a", "age": 4'])
def test_no_end_token_is_legal_in_an_unfinished_text(rig: GrammarRig, text: str) -> None:
    matcher = after(rig, rig.schema(PERSON), text)

    assert not rig.legal(matcher) & set(END_IDS)
    assert [matcher.accept([i]) for i in END_IDS] == [0, 0]
    assert not matcher.is_finished


def test_rollback_counts_an_end_token_as_one(rig: GrammarRig) -> None:
    matcher = after(rig, rig.schema(PERSON), '{"name": "a", "age": 4}')
    matcher.accept([END_IDS[1]])

    matcher.rollback(1)

    assert not matcher.is_finished
    assert rig.legal(matcher) == set(END_IDS)
    matcher.rollback(1)
    assert matcher.accept(rig.vocabulary.encode("}")) == 1


def test_rollback_of_everything_is_the_start(rig: GrammarRig) -> None:
    grammar = rig.schema(PERSON)
    matcher = after(rig, grammar, '{"name": "a", "age": 4}')
    matcher.accept([END_IDS[0]])

    matcher.rollback(len(rig.vocabulary.encode('{"name": "a", "age": 4}')) + 1)

    assert rig.legal(matcher) == rig.legal(grammar.matcher())


def test_a_refused_token_changes_nothing(rig: GrammarRig) -> None:
    grammar = rig.schema(PERSON)
    matcher = after(rig, grammar, '{"name": "a')
    quote, brace = rig.vocabulary.encode('"')[0], rig.vocabulary.encode("}")[0]

    taken = matcher.accept([quote, brace, quote])

    assert taken == 1
    assert rig.legal(matcher) == rig.legal(after(rig, grammar, '{"name": "a"'))
    matcher.rollback(1)
    assert rig.legal(matcher) == rig.legal(after(rig, grammar, '{"name": "a'))


def test_a_fork_goes_its_own_way(rig: GrammarRig) -> None:
    grammar = rig.schema(PERSON)
    matcher = after(rig, grammar, '{"name": "a')
    before = rig.legal(matcher)

    fork = matcher.fork()
    fork.accept(rig.vocabulary.encode('", "age": 4}'))
    fork.accept([END_IDS[0]])

    assert fork.is_finished and not matcher.is_finished
    assert rig.legal(matcher) == before
    fork.rollback(1)
    assert rig.legal(fork) == set(END_IDS)


def test_the_first_token_opens_the_object(rig: GrammarRig) -> None:
    legal = rig.legal(rig.schema(PERSON).matcher())

    assert {rig.vocabulary.tokens[i][:1] for i in legal} == {b"{"}


def test_keys_come_in_the_order_of_the_schema(rig: GrammarRig) -> None:
    grammar = rig.schema(closed_object({"zeta": INTEGER, "alpha": INTEGER}))

    assert rig.takes(grammar, '{"zeta": 1, "alpha": 2}')
    assert not rig.takes(grammar, '{"alpha": 2, "zeta": 1}')


@pytest.mark.parametrize(
    ("whitespace", "legal", "illegal"),
    [
        (JsonWhitespace.COMPACT, ['{"a":[1,2]}'], ['{"a": [1,2]}', '{ "a":[1,2]}']),
        (JsonWhitespace.SPACED, ['{"a": [1, 2]}'], ['{"a":[1,2]}', '{"a": [1, 2] }']),
        (
            JsonWhitespace.BOUNDED,
            ['{"a":[1,2]}', '{\n\n"a" : [1,\n2]\t}', "{" + "\n" * 8 + '"a":[1,2]}'],
            ["{" + "\n" * 9 + '"a":[1,2]}', "{" + "\n" * 4096 + '"a":[1,2]}'],
        ),
        (JsonWhitespace.UNBOUNDED, ["{" + "\n" * 4096 + '"a":[1,2]}'], ['{"a"\u00a0:[1,2]}']),
    ],
)
def test_whitespace_stands_where_it_is_allowed(
    rig: GrammarRig, whitespace: JsonWhitespace, legal: list[str], illegal: list[str]
) -> None:
    pair = {"type": "array", "prefixItems": [INTEGER, INTEGER], "items": False, "minItems": 2}
    grammar = rig.schema(closed_object({"a": pair}), whitespace)

    assert [text for text in legal if not rig.takes(grammar, text)] == []
    assert [text for text in illegal if rig.takes(grammar, text)] == []


@pytest.mark.parametrize("text", ["h\u00e9llo \u6f22\u5b57 \U0001f600", 'quote " back \\ tab \t'])
def test_any_character_may_stand_in_a_string_token_by_token(rig: GrammarRig, text: str) -> None:
    grammar = rig.schema(closed_object({"a": STRING}))

    assert rig.takes(grammar, json.dumps({"a": text}, ensure_ascii=False))


def test_a_constant_keeps_its_bytes(rig: GrammarRig) -> None:
    value = "Gr\u00f6\u00dfe \u6f22 \U0001f600"
    grammar = rig.schema(closed_object({"a": {"enum": [value, "b"]}}))

    assert rig.takes(grammar, json.dumps({"a": value}, ensure_ascii=False))
    assert not rig.takes(grammar, json.dumps({"a": value[:-1]}, ensure_ascii=False))


@pytest.mark.parametrize("body", ["\\ud800", "\\u0061", "\\/", "a\x01", "a\n"])
def test_a_string_has_no_second_spelling_and_no_lone_surrogate(rig: GrammarRig, body: str) -> None:
    for schema in (STRING, {"type": "string", "maxLength": 20}):
        assert not rig.takes(rig.schema(closed_object({"a": schema})), f'{{"a": "{body}"}}')


def test_a_declared_key_cannot_be_spelled_as_an_additional_one() -> None:
    rig = GrammarRig(GrammarEngine.XGRAMMAR, bundled_vocabulary())
    schema = {"type": "object", "properties": {"a": INTEGER}, "additionalProperties": STRING}

    for grammar in (rig.schema(schema), rig.served(schema)):
        assert rig.takes(grammar, '{"a": 1, "b": "x"}')
        assert not rig.takes(grammar, '{"\\u0061": "x"}')


def test_a_length_counts_characters_not_bytes(rig: GrammarRig) -> None:
    grammar = rig.schema(closed_object({"a": {"type": "string", "maxLength": 3}}))

    assert rig.takes(grammar, '{"a": "\u6f22\u6f22\u6f22"}')
    assert not rig.takes(grammar, '{"a": "abcd"}')


INSTANCES: list[tuple[dict[str, Any], Any]] = [
    (PERSON, {"name": "John Smith", "age": 42}),
    (
        closed_object({"coordinates": closed_object({"latitude": INTEGER, "longitude": INTEGER})}),
        {"coordinates": {"latitude": 12, "longitude": 7}},
    ),
    (
        closed_object(
            {"kind": {"enum": ["a longer value", "another"]}, "is_done": {"const": True}}
        ),
        {"kind": "a longer value", "is_done": True},
    ),
    (
        closed_object(
            {"text": {"const": 'quote " \u65e5\u672c\u8a9e \U0001f600 end'}, "n": INTEGER}
        ),
        {"text": 'quote " \u65e5\u672c\u8a9e \U0001f600 end', "n": 1},
    ),
]


@pytest.mark.parametrize(("schema", "instance"), INSTANCES)
@pytest.mark.parametrize("whitespace", [JsonWhitespace.COMPACT, JsonWhitespace.BOUNDED])
def test_forced_tokens_are_those_of_the_tokenizer(
    rig: GrammarRig, whitespace: JsonWhitespace, schema: dict[str, Any], instance: Any
) -> None:
    ids = rig.vocabulary.encode(json.dumps(instance, separators=(",", ":"), ensure_ascii=False))
    for grammar in (rig.schema(schema, whitespace), rig.served(schema, whitespace)):
        matcher = grammar.matcher()
        num_forced = 0

        for index, token_id in enumerate(ids):
            forced = matcher.forced_tokens(64)
            num_forced += bool(forced)
            assert forced == ids[index : index + len(forced)]
            assert matcher.accept([token_id]) == 1

        if whitespace is JsonWhitespace.COMPACT:
            assert num_forced >= 3
        assert matcher.forced_tokens(64) == [END_IDS[0]]


def test_forced_tokens_keep_to_their_limit_and_leave_the_state_alone(rig: GrammarRig) -> None:
    grammar = rig.schema(closed_object({"a": {"const": "word " * 40}}), JsonWhitespace.COMPACT)
    matcher = grammar.matcher()

    few, all_ = matcher.forced_tokens(3), matcher.forced_tokens(500)

    assert len(few) == 3 and len(all_) > 40
    assert few == all_[:3]
    assert rig.legal(matcher) == rig.legal(grammar.matcher())


@pytest.mark.parametrize("text", ['root ::= "a', 'root ::= nothing "a"'])
def test_an_unreadable_grammar_is_an_error_of_one_line(rig: GrammarRig, text: str) -> None:
    with pytest.raises(GrammarError) as caught:
        rig.ebnf(text)

    assert caught.value.reason and "\n" not in caught.value.reason


@pytest.mark.parametrize("pattern", ["(", "a(?=b)", "a\\b", "[z-a]"])
def test_a_regex_that_cannot_be_enforced_is_an_error(rig: GrammarRig, pattern: str) -> None:
    with pytest.raises(GrammarError):
        rig.regex(pattern)


def test_a_schema_that_no_text_satisfies_is_an_error(rig: GrammarRig) -> None:
    loop = {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}
    for schema in (loop, closed_object({"a": False})):  # type: ignore[dict-item]
        with pytest.raises(GrammarError):
            rig.schema(schema)


def test_ebnf_counts_every_way_to_split_a_text(rig: GrammarRig) -> None:
    grammar = rig.ebnf('root ::= "a" "bc" | "ab" "d" | pair\npair ::= "<" pair? ">"')

    for text in ("abc", "abd", "<>", "<<<>>>"):
        assert rig.takes(grammar, text), text
    for text in ("ab", "abcd", "<<>", "><"):
        assert not rig.takes(grammar, text), text


def test_forced_text_without_end_does_not_hang() -> None:
    rig = GrammarRig(GrammarEngine.LLGUIDANCE, bundled_vocabulary())
    text = 'start: A "ab"\nA: /a+/\n%llguidance {"no_forcing": true}\n'
    matcher = rig.compile(PreparedForm.LARK, text).matcher()

    assert {rig.vocabulary.tokens[i] for i in rig.legal(matcher)} == {b"a", b"aa", b"aaaa"}
    assert matcher.forced_tokens(9) == []
    assert matcher.closing_tokens(50) is None


def test_one_call_fills_the_rows_of_a_batch_in_any_order() -> None:
    rigs = [GrammarRig(engine, bundled_vocabulary()) for engine in ENGINES]
    matchers: list[Matcher | None] = [None]
    for rig in rigs:
        matchers += [
            after(rig, rig.schema(PERSON), '{"name": "a'),
            rig.regex("[0-9]{3}").matcher(),
            after(rig, rig.schema(closed_object({"b": INTEGER})), '{"b": 1}'),
        ]

    many = [matcher and matcher.fork() for matcher in matchers * 6]
    for order in (matchers, matchers[::-1], [*matchers[3:], *matchers[:3]], many):
        for threads in (1, 2):
            masks = np.full((len(order) + 1, rigs[0].vocabulary.bitmask_words), 7, np.uint32)
            assert fill_batch(order, masks, threads) == []
            for row, matcher in enumerate(order):
                if matcher is None:
                    assert (masks[row] == 0xFFFFFFFF).all()
                else:
                    assert (masks[row] == mask_of(matcher, rigs[0].vocabulary)).all()
            assert (masks[-1] == 7).all()


def test_a_row_that_costs_too_much_is_named_and_the_others_are_right(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from llguidance import LLParserLimits

    rig = GrammarRig(GrammarEngine.LLGUIDANCE, bundled_vocabulary())
    good = rig.regex("[0-9]{3}").matcher()
    limits = LLParserLimits(step_max_items=40, verbose_errors=False)
    monkeypatch.setattr("runtime.grammars.llguidance_engine._LIMITS", limits)
    start = "\u6f22\u6f22\u6f22\u6f22"
    lists = 'list ::= item*\nitem ::= [a-z] | "(" list ")"'
    bad = rig.ebnf(f'root ::= "{start}" list\n{lists}').matcher()
    bad.accept(rig.vocabulary.encode(start))
    masks = np.zeros((2, rig.vocabulary.bitmask_words), np.uint32)

    broken = fill_batch([bad, good], masks)

    assert broken == [0]
    assert (masks[1] == mask_of(good, rig.vocabulary)).all()
    with pytest.raises(GrammarError):
        bad.fill(masks[0])
