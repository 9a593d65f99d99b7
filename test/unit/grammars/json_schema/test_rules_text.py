from __future__ import annotations

from runtime.grammars.json_schema.rules import RuleRef, Rules, Times
from runtime.grammars.json_schema.rules_text import grammar_text


def test_what_is_used_once_stands_where_it_is_used() -> None:
    rules = Rules()
    comma, word = rules.terminal("/,/"), rules.terminal("/[a-z]+/")
    inner, rule = rules.new()
    rule.add(word)
    outer, rule = rules.new()
    rule.add(comma, Times((comma, inner), 0, None), comma)

    text = grammar_text(rules, outer)

    assert text == f"start: {comma.name} ({comma.name} /[a-z]+/)* {comma.name}\n{comma.name}: /,/\n"


def test_a_rule_without_end_and_what_needs_it_are_left_out() -> None:
    rules = Rules()
    word = rules.terminal("/a/")
    endless, rule = rules.new()
    rule.add(word, endless)
    start, rule = rules.new()
    rule.add(word)
    rule.add(word, endless)
    rule.add(Times((endless,), 0, None), rules.terminal("/b/"))

    assert grammar_text(rules, endless) is None
    text = grammar_text(rules, start)

    assert text == f"start: r{start.number}\nr{start.number}: /a/\n  | /b/\n"


def test_rules_that_refer_to_each_other_keep_their_names() -> None:
    rules = Rules()
    left, right = rules.new(), rules.new()
    left[1].add(rules.terminal("/a/"), right[0])
    right[1].add()
    right[1].add(rules.terminal("/b/"), left[0])

    text = grammar_text(rules, left[0])

    assert text is not None
    lines = text.splitlines()
    assert lines[0] == f"start: r{left[0].number}"
    assert f"r{left[0].number}: /a/ r{right[0].number}" in lines


def test_a_chain_of_rules_may_be_longer_than_python_can_recurse() -> None:
    rules = Rules()
    following: RuleRef | None = None
    for number in range(3_000):
        reference, rule = rules.new()
        rule.add(rules.terminal(f"/{number}/"), *([following] if following else []))
        following = reference
    assert following is not None

    text = grammar_text(rules, following)

    assert text is not None
    assert all(f"/{number}/" in text for number in (0, 1_500, 2_999))
