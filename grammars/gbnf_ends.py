"""Which rules of a GBNF grammar can end: have a text without needing themselves again.

A literal can end; a choice when one of its options can, a sequence when all of its parts can. Each
node that is found to end tells the one above it, once, so that the whole costs what the grammar's
text is long, in whatever order its rules stand.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from .gbnf_parser import Choice, Node, Repeat, Rule, Sequence


def ending_rules(rules: Mapping[str, Node]) -> set[str]:
    """The names of the rules that can end."""
    return _Search(rules).run()


@dataclass(slots=True, eq=False)
class _Open:
    """A node that is not known to end. num_missing: of its parts, how many must end yet."""

    above: _Open | str  # the node that it is a part of, or the rule that it is the whole of
    num_missing: int


class _Search:
    def __init__(self, rules: Mapping[str, Node]) -> None:
        self._ending: set[str] = set()
        self._waiting: defaultdict[str, list[_Open | str]] = defaultdict(list)  # by rule
        self._news: list[str] = []  # rules that were found to end, not told to others yet
        for name, node in rules.items():
            self._look(node, name)

    def run(self) -> set[str]:
        while self._news:
            for above in self._waiting.pop(self._news.pop(), ()):
                self._ends(above)
        return self._ending

    def _look(self, node: Node, above: _Open | str) -> None:
        """Tell above if node ends, or see to it that it will be told."""
        if isinstance(node, Rule):
            if node.name in self._ending:
                self._ends(above)
            else:
                self._waiting[node.name].append(above)
        elif isinstance(node, Choice):
            place = _Open(above, 1)
            for option in node.options:
                self._look(option, place)
        elif isinstance(node, Sequence) and node.parts:
            place = _Open(above, len(node.parts))
            for part in node.parts:
                self._look(part, place)
        elif isinstance(node, Repeat) and node.least > 0:
            self._look(node.node, above)
        else:
            self._ends(above)

    def _ends(self, above: _Open | str) -> None:
        """One more part of above ends."""
        while not isinstance(above, str):
            above.num_missing -= 1
            if above.num_missing != 0:  # below zero: it was told before, by another option
                return
            above = above.above
        if above not in self._ending:
            self._ending.add(above)
            self._news.append(above)
