"""How often a request's text is searched for an end while there is budget to spare."""

from __future__ import annotations

import json
from typing import Any

from support.bundled_tokenizer import bundled_vocabulary
from support.grammar_rig import GrammarRig, closed_object

from runtime.grammars.closing import Closer
from runtime.grammars.prepared import GrammarEngine

FIELDS = {f"field {number}": {"type": "integer"} for number in range(10)}
BUDGET = 300


class CountingMatcher:
    """A matcher that counts the searches for an end."""

    def __init__(self, matcher: Any) -> None:  # the methods of the Matcher it stands for
        self._matcher = matcher
        self.num_searches = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._matcher, name)

    def closing_tokens(self, limit: int, enough: int = 0) -> list[int] | None:
        self.num_searches += 1
        found: list[int] | None = self._matcher.closing_tokens(limit, enough)
        return found


def test_the_end_found_before_serves_again_and_draws_are_left_alone() -> None:
    rig = GrammarRig(GrammarEngine.LLGUIDANCE, bundled_vocabulary())
    matcher = CountingMatcher(rig.served(closed_object(FIELDS)).matcher())
    closer = Closer(matcher)
    ids = rig.vocabulary.encode(json.dumps(dict.fromkeys(FIELDS, 12_345)))
    num_looks_due = len(ids) * 8 // BUDGET  # each look covers an eighth of the slack, at most

    taken = [closer.take(token_id, BUDGET - i) for i, token_id in enumerate(ids)]

    assert taken == ids
    assert num_looks_due > 2
    assert matcher.num_searches <= 2


def test_an_end_found_before_is_not_taken_from_another_state_after_a_reset() -> None:
    rig = GrammarRig(GrammarEngine.LLGUIDANCE, bundled_vocabulary())
    matcher = CountingMatcher(rig.served(closed_object(FIELDS)).matcher())
    closer = Closer(matcher)
    first = rig.vocabulary.encode('{"field 0')
    closer.take(first[0], BUDGET)
    before = matcher.num_searches
    matcher.rollback(1)

    closer.reset()
    closer.take(first[0], BUDGET)

    assert matcher.num_searches == before + 1
