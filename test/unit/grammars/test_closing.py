"""Texts end complete before their token budget does, whatever is sampled."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import cache
from random import Random
from typing import Any, cast

import pytest
from support.bundled_tokenizer import bundled_vocabulary
from support.byte_vocabulary import byte_vocabulary
from support.grammar_rig import ENGINES, GrammarRig, closed_object

from runtime.grammars.closing import STRICT_SLACK_TOKENS, Closer
from runtime.grammars.closing_search import HASTY_LIMIT
from runtime.grammars.matcher import Grammar, GrammarError, Matcher
from runtime.grammars.prepared import GrammarEngine
from runtime.grammars.spec import JsonWhitespace
from runtime.grammars.vocabulary import Vocabulary

STRING: dict[str, Any] = {"type": "string"}
INTEGER: dict[str, Any] = {"type": "integer"}
NODE = closed_object({"v": INTEGER, "next": {"anyOf": [{"$ref": "#/$defs/n"}, {"type": "null"}]}})
SCHEMAS: dict[str, Any] = {
    "person": closed_object({"name": STRING, "age": INTEGER}),
    "enum": closed_object({"c": {"enum": ["a long value of many words", "b", "other words"]}}),
    "rows": {"type": "array", "items": closed_object({"x": INTEGER, "s": STRING}), "minItems": 2},
    "optional": closed_object(
        {"z": STRING, "o": closed_object({"p": STRING}), "r": INTEGER}, ["r"]
    ),
    "either": {"anyOf": [closed_object({"big": closed_object({"s": STRING})}), {"type": "null"}]},
    "long": closed_object({"t": {"type": "string", "minLength": 40}}),
    "pattern": closed_object({"t": {"type": "string", "pattern": "^[a-z]{3}-[0-9]{4}$"}}),
    "list": {"$ref": "#/$defs/n", "$defs": {"n": NODE}},
    "anything": {"type": "object"},
}
BYTES = byte_vocabulary()


@cache
def eagerness(vocabulary: Vocabulary) -> list[int]:
    """How much each id suits one who wants the text to go on: no quote, no bracket, long."""

    def goes_on(i: int) -> tuple[bool, bool, int, int]:
        ends = any(byte in b'"]}' for byte in vocabulary.tokens[i])
        return i not in vocabulary.end_ids, not ends, len(vocabulary.tokens[i]), i

    ranks = [0] * vocabulary.size
    for rank, token_id in enumerate(sorted(range(vocabulary.size), key=goes_on)):
        ranks[token_id] = rank
    return ranks


def longest_text(rig: GrammarRig, matcher: Matcher) -> int:
    """The sampled token of someone who wants the text to go on."""
    return max(rig.legal(matcher), key=eagerness(rig.vocabulary).__getitem__)


def generated(rig: GrammarRig, grammar: Grammar, max_tokens: int, jumps: bool) -> tuple[str, bool]:
    """The text of an adversary within max_tokens, and whether it came to its end.

    As served: the end token itself need not fit.
    """
    matcher = grammar.matcher()
    closer = Closer(matcher)
    ids: list[int] = []
    while len(ids) < max_tokens and not matcher.is_finished:
        left = max_tokens - len(ids)
        forced = closer.jump(matcher.forced_tokens(16), left) if jumps else []
        ids += forced or [closer.take(longest_text(rig, matcher), left)]
    text = rig.vocabulary.joined(i for i in ids if i not in rig.vocabulary.end_ids)
    return text.decode(), matcher.is_finished or matcher.is_at_end


@pytest.mark.parametrize("jumps", [False, True])
@pytest.mark.parametrize("name", SCHEMAS)
def test_a_document_is_complete_at_every_budget_that_holds_one(name: str, jumps: bool) -> None:
    rig = GrammarRig(GrammarEngine.LLGUIDANCE, BYTES)
    grammar = rig.served(SCHEMAS[name])
    least = grammar.matcher().closing_tokens(1000)
    assert least is not None

    for max_tokens in range(len(least) - 1, len(least) + 30):
        text, ended = generated(rig, grammar, max_tokens, jumps)

        assert ended, (max_tokens, text)
        json.loads(text)


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.value)
@pytest.mark.parametrize("name", ["person", "rows", "optional"])
def test_it_is_complete_with_either_engine_and_a_real_vocabulary(
    engine: GrammarEngine, name: str
) -> None:
    rig = GrammarRig(engine, bundled_vocabulary())
    grammar = rig.schema(SCHEMAS[name])
    least = grammar.matcher().closing_tokens(1000)
    assert least is not None

    for extra in (0, 1, 2, 5, 11, 31):
        text, ended = generated(rig, grammar, len(least) + extra, jumps=True)

        assert ended, (extra, text)
        json.loads(text)


def in_one_go(rig: GrammarRig, grammar: Grammar, max_tokens: int) -> list[int]:
    """The tokens of the adversary, who draws one after the other."""
    matcher = grammar.matcher()
    closer = Closer(matcher)
    ids: list[int] = []
    while len(ids) < max_tokens and not matcher.is_finished:
        forced = matcher.forced_tokens(16)
        wanted = forced[0] if forced else longest_text(rig, matcher)
        ids.append(closer.take(wanted, max_tokens - len(ids)))
    return ids


def with_jumps_taken_back(
    rig: GrammarRig, grammar: Grammar, max_tokens: int, rng: Random
) -> list[int]:
    """The same with jumps, some of them taken back in part and drawn or jumped over again."""
    matcher = grammar.matcher()
    closer = Closer(matcher)
    ids: list[int] = []
    while len(ids) < max_tokens and not matcher.is_finished:
        left = max_tokens - len(ids)
        forced = matcher.forced_tokens(16)
        taken = closer.jump(forced, left) if rng.random() < 0.7 else []
        ids += taken or [closer.take(forced[0] if forced else longest_text(rig, matcher), left)]
        if rng.random() < 0.1:
            num_back = rng.randint(0, min(len(ids), 8))
            closer.take_back(num_back)
            del ids[len(ids) - num_back :]
    return ids


@pytest.mark.parametrize("name", SCHEMAS)
def test_tokens_do_not_depend_on_jumps_and_on_what_was_taken_back(name: str) -> None:
    rig = GrammarRig(GrammarEngine.LLGUIDANCE, BYTES)
    grammar = rig.served(SCHEMAS[name])
    least = grammar.matcher().closing_tokens(1000)
    assert least is not None

    for max_tokens in range(max(len(least) - 3, 1), len(least) + 40, 3):
        expected = in_one_go(rig, grammar, max_tokens)
        for seed in range(3):
            found = with_jumps_taken_back(rig, grammar, max_tokens, Random(seed))
            assert found == expected, (max_tokens, seed)


def test_a_jump_that_breaks_off_keeps_what_it_took() -> None:
    rig = GrammarRig(GrammarEngine.LLGUIDANCE, BYTES)
    matcher = rig.regex("abc").matcher()
    closer = Closer(matcher)
    a, b, z = (rig.vocabulary.encode(letter)[0] for letter in "abz")

    assert closer.jump([a, z, b], 10) == [a]

    assert closer.take(b, 9) == b


def test_a_budget_beyond_the_near_end_is_used_and_kept() -> None:
    rig = GrammarRig(GrammarEngine.LLGUIDANCE, BYTES)
    max_tokens = 4 * STRICT_SLACK_TOKENS

    text, ended = generated(rig, rig.served(SCHEMAS["person"]), max_tokens, jumps=False)

    assert ended
    assert len(text) > max_tokens - 40
    json.loads(text)


def test_a_document_longer_than_the_near_end_is_kept_in_budget_from_the_start() -> None:
    rig = GrammarRig(GrammarEngine.LLGUIDANCE, BYTES)
    schema = closed_object({"t": {"const": "x" * 300}, "s": STRING, "u": {"const": "y" * 300}})
    grammar = rig.served(schema, JsonWhitespace.COMPACT)
    least = grammar.matcher().closing_tokens(2000)
    assert least is not None and len(least) > 6 * STRICT_SLACK_TOKENS

    for extra in (0, 1, 40):
        text, ended = generated(rig, grammar, len(least) + extra, jumps=False)

        assert ended, extra
        json.loads(text)


def test_a_budget_too_small_for_any_document_changes_no_token() -> None:
    rig = GrammarRig(GrammarEngine.LLGUIDANCE, BYTES)
    matcher = rig.served(SCHEMAS["person"]).matcher()
    closer = Closer(matcher)

    for left in range(9, 0, -1):
        sampled = longest_text(rig, matcher)
        assert closer.take(sampled, left) == sampled

    assert not matcher.is_finished


def test_text_that_may_end_anywhere_keeps_its_last_token() -> None:
    rig = GrammarRig(GrammarEngine.LLGUIDANCE, BYTES)
    matcher = rig.regex("[a-z]+").matcher()
    closer = Closer(matcher)

    taken = [closer.take(ord("x"), left) for left in range(9, 0, -1)]

    assert taken == [ord("x")] * 9


def test_an_illegal_token_is_an_error() -> None:
    closer = Closer(GrammarRig(GrammarEngine.LLGUIDANCE, BYTES).regex("[0-9]+").matcher())

    with pytest.raises(GrammarError, match="token 97 is not legal"):
        closer.take(97, 50)


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.value)
@pytest.mark.parametrize(
    ("schema", "shortest"),
    [
        (SCHEMAS["person"], '{"name":"","age":0}'),
        (SCHEMAS["enum"], '{"c":"b"}'),
        (SCHEMAS["optional"], '{"r":0}'),
        (SCHEMAS["either"], "null"),
        (SCHEMAS["list"], '{"v":0,"next":null}'),
        (SCHEMAS["anything"], "{}"),
        ({"type": "array", "items": SCHEMAS["rows"]}, "[]"),
    ],
)
def test_the_completion_of_nothing_is_about_the_shortest_document(
    engine: GrammarEngine, schema: Any, shortest: str
) -> None:
    rig = GrammarRig(engine, bundled_vocabulary())
    least = len(rig.vocabulary.encode(shortest)) + 1
    matcher = rig.schema(schema).matcher()

    found = matcher.closing_tokens(2 * least)

    assert found is not None and len(found) <= 2 * least
    assert matcher.accept(found) == len(found) and matcher.is_finished


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.value)
def test_a_completion_is_legal_within_its_limit_and_always_the_same(engine: GrammarEngine) -> None:
    rig = GrammarRig(engine, bundled_vocabulary())
    for name in ("rows", "pattern", "long"):
        matcher = rig.schema(SCHEMAS[name]).matcher()
        matcher.accept(rig.vocabulary.encode("{" if name != "rows" else "["))
        before = rig.legal(matcher)
        found = matcher.closing_tokens(HASTY_LIMIT)
        assert found is not None

        assert matcher.closing_tokens(HASTY_LIMIT) == found
        for limit in (len(found), len(found) - 1, 1, 0):
            fits = matcher.closing_tokens(limit)
            assert fits is None or len(fits) <= limit
        assert rig.legal(matcher) == before
        assert matcher.accept(found) == len(found) and matcher.is_finished


@pytest.mark.parametrize(
    "constraint",
    [
        {"format": "uuid"},
        {"format": "date-time"},
        {"format": "email"},
        {"format": "ipv6"},
        {"pattern": "[0-9]{3}"},
        {"pattern": "^[a-z]*xyz$"},
        {"pattern": "\\.com$"},
        {"pattern": "^[\\u4e00-\\u9fff]{5}$"},
        {"minLength": 500},
    ],
)
def test_a_completion_is_found_where_a_string_must_have_a_shape(constraint: dict[str, Any]) -> None:
    rig = GrammarRig(GrammarEngine.LLGUIDANCE, bundled_vocabulary())
    matcher = rig.served(closed_object({"a": {"type": "string", **constraint}})).matcher()

    found = matcher.closing_tokens(120)

    assert found is not None
    assert matcher.accept(found) == len(found) and matcher.is_finished


@pytest.mark.parametrize(
    "pattern",
    [
        "x.y",
        "\\n",
        "\\n.*\\n",
        "\\t\\r",
        '".*"',
        "\\\\",
        "\\x01",
        "[一-鿿]{3}",
        "x.y$|z",
        "^cat|dog$",
        '^"[^"\\\\]*"$',
        "^(?:foo|.*bar)$",
        "a[0-9]b[0-9]c",
    ],
)
def test_an_open_pattern_gets_what_it_waits_for_within_a_small_budget(pattern: str) -> None:
    rig = GrammarRig(GrammarEngine.LLGUIDANCE, bundled_vocabulary())
    grammar = rig.served(closed_object({"a": {"type": "string", "pattern": pattern}}))
    least = grammar.matcher().closing_tokens(1000)

    assert least is not None and len(least) <= 16
    for max_tokens in (len(least), len(least) + 7, len(least) + 60):
        text, ended = generated(rig, grammar, max_tokens, jumps=True)
        assert ended, (max_tokens, text)
        assert re.search(pattern, json.loads(text)["a"])


@pytest.mark.parametrize(
    "wanted",
    [
        {"const": 5},
        {"type": "null"},
        {"const": "a word"},
        {"minimum": 70, "type": "number"},
        {"type": "string", "pattern": "^x.*y$"},
    ],
    ids=str,
)
def test_an_array_gets_the_item_that_it_must_contain(wanted: dict[str, Any]) -> None:
    rig = GrammarRig(GrammarEngine.LLGUIDANCE, bundled_vocabulary())
    grammar = rig.served({"type": "array", "contains": wanted})
    least = grammar.matcher().closing_tokens(1000)

    assert least is not None and len(least) <= 24
    for max_tokens in (len(least), len(least) + 9, len(least) + 60):
        text, ended = generated(rig, grammar, max_tokens, jumps=True)
        assert ended, (max_tokens, text)
        assert isinstance(json.loads(text), list)


class HastyMatcher:
    """Fakes a Matcher whose searches find nothing while they are hasty.

    Text is any number of 0s; its end is NUM_LEFT - 1 times 1, then the end token 2.
    """

    NUM_LEFT = 60

    def __init__(self) -> None:
        self.num_left = self.NUM_LEFT
        self.history: list[int] = []

    @property
    def is_finished(self) -> bool:
        return self.num_left == 0

    def accept(self, token_ids: Sequence[int]) -> int:
        for count, token_id in enumerate(token_ids):
            legal = {self.NUM_LEFT: (0, 1), 1: (2,), 0: ()}.get(self.num_left, (1,))
            if token_id not in legal:
                return count
            self.history.append(self.num_left)
            self.num_left -= token_id != 0
        return len(token_ids)

    def rollback(self, num_tokens: int) -> None:
        for _ in range(num_tokens):
            self.num_left = self.history.pop()

    def closing_tokens(self, limit: int, enough: int = 0) -> list[int] | None:
        if limit > HASTY_LIMIT or self.num_left > limit:
            return None
        return [*[1] * (self.num_left - 1), 2]


@pytest.mark.parametrize("max_tokens", [61, 200, 257, 300, 519, 520, 700, 2000])
def test_hasty_searches_that_find_nothing_do_not_delay_the_thorough_one(max_tokens: int) -> None:
    matcher = HastyMatcher()
    closer = Closer(cast(Matcher, matcher))

    for left in range(max_tokens, 0, -1):
        if not matcher.is_finished:  # who writes never wants to end
            closer.take({matcher.NUM_LEFT: 0, 1: 2}.get(matcher.num_left, 1), left)

    assert matcher.num_left <= 1, "nothing but the end token is missing"
