"""rule_order: which rules a GBNF grammar needs, and how they lead to each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .gbnf_parser import Node, used_rules


@dataclass(frozen=True, slots=True)
class RuleOrder:
    """places: the rules that root needs, each after those it uses where there is such an order.

    depth: how many rules were open at once on the way to the innermost.
    """

    places: dict[str, int]
    depth: int
    is_recursive: bool


def rule_order(rules: Mapping[str, Node]) -> RuleOrder:
    """The order of rules, all of which are defined; root is among them."""
    used = {name: sorted(used_rules(node)) for name, node in rules.items()}
    places: dict[str, int] = {}
    met = {"root"}
    stack = [("root", iter(used["root"]))]
    depth = 1
    is_recursive = False
    while stack:
        name, rest = stack[-1]
        following = next(rest, None)
        if following is None:
            places[name] = len(places)
            stack.pop()
        elif following not in met:
            met.add(following)
            stack.append((following, iter(used[following])))
            depth = max(depth, len(stack))
        elif following not in places:
            is_recursive = True  # it is still open: it needs itself
    return RuleOrder(places, depth, is_recursive)
