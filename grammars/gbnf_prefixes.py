"""factored: a choice between many texts, in which what they begin with is written once.

A parser keeps a place in every option that is still possible: with thousands of texts these are too
many at the first character. With shared beginnings taken out they are as many as there are
characters to go on with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

from .gbnf_parser import Choice, Node, Rule, Sequence, Text

MAX_LEVELS = 16  # of choices within choices, before one becomes a rule of its own

_Branch: TypeAlias = dict[str, "_Branch"]
"""What may follow, by character; the key "" says that a text may end."""


def factored(texts: Iterable[str], new_rule: Callable[[Node], Rule]) -> Node:
    """A node that has exactly these texts. new_rule gives a node a name, in place of it."""
    root: _Branch = {}
    for text in texts:
        place = root
        for char in text:
            place = place.setdefault(char, {})
        place[""] = {}
    # By a stack, innermost first: how deep it goes is for the texts to say.
    branches = [(root, _ways(root))]
    for _, ways in branches:
        branches += [(end, _ways(end)) for _, end in ways if len(end) > 1]
    written: dict[int, tuple[Node, int]] = {}
    for branch, ways in reversed(branches):
        found = [_option(text, *written.pop(id(end), (None, 0))) for text, end in ways]
        level = 1 + max(levels for _, levels in found)
        options = tuple(option for option, _ in found)
        node = options[0] if len(options) == 1 else Choice(options)
        written[id(branch)] = (node, level) if level < MAX_LEVELS else (new_rule(node), 0)
    return written[id(root)][0]


def _ways(branch: _Branch) -> list[tuple[str, _Branch]]:
    """The ways on from branch: what is read up to the next place where ways part, or the end."""
    found = []
    for char, rest in branch.items():
        read = [char]
        while len(rest) == 1 and "" not in rest:
            ((char, rest),) = rest.items()
            read.append(char)
        found.append(("".join(read), rest))
    return found


def _option(text: str, rest: Node | None, levels: int) -> tuple[Node, int]:
    return (Text(text), 0) if rest is None else (Sequence((Text(text), rest)), levels)
