"""lark_of_gbnf: GBNF as a Lark grammar that means the same.

In GBNF any split of a text between rules counts. A Lark grammar has terminals, which take as
much text as they can: "a" "bc" | "ab" "d" would not match abc. So a grammar without recursion
becomes one terminal, and in others each character is a terminal of its own.
"""

from __future__ import annotations

from .gbnf_ends import ending_rules
from .gbnf_parser import (
    CharClass,
    Choice,
    Node,
    Repeat,
    Rule,
    Sequence,
    Text,
    children,
    parse_gbnf,
)
from .gbnf_prefixes import factored
from .gbnf_regex import class_regex, escaped, regex_of, repeat_suffix
from .gbnf_rules import RuleOrder, rule_order
from .matcher import GrammarError

# Of a grammar that is not one regular expression: the engine takes 10 us for each character of
# it, and goes from rule to rule by recursion.
MAX_TERMINALS = 60_000
MAX_RULE_DEPTH = 500


def lark_of_gbnf(text: str) -> str:
    """Raises GrammarError for a grammar that cannot be read, or whose root has no end."""
    rules = parse_gbnf(text)
    order = rule_order(rules)
    _raise_if_endless(rules, order)
    regex = None if order.is_recursive else regex_of(rules)
    if regex is not None:
        return f"start: TEXT\nTEXT: /{regex}/\n" if regex else 'start: ""\n'
    return _as_lark({name: node for name, node in rules.items() if name in order.places})


def _raise_if_endless(rules: dict[str, Node], order: RuleOrder) -> None:
    """Every rule that root reaches must be able to end; others would never let a text end."""
    ending = ending_rules(rules)
    for name in rules:
        if name in order.places and name not in ending:
            raise GrammarError(f"rule {name} can never end: it always needs itself again")


def _as_lark(rules: dict[str, Node]) -> str:
    rules = _with_shared_beginnings(rules)
    _check_size(rules, rule_order(rules))
    names = {name: f"rule_{index}" for index, name in enumerate(rules)}
    names["root"] = "start"
    return "".join(f"{names[name]}: {_lark(node, names)}\n" for name, node in rules.items())


def _check_size(rules: dict[str, Node], order: RuleOrder) -> None:
    size = sum(map(_num_terminals, rules.values()))
    if size > MAX_TERMINALS:
        raise GrammarError(
            f"the grammar has {size} characters and classes in its rules, at most {MAX_TERMINALS} "
            "if it is recursive, or too long as one regular expression"
        )
    if order.depth > MAX_RULE_DEPTH:
        raise GrammarError(
            f"the grammar's rules lead through {order.depth} others, at most {MAX_RULE_DEPTH}"
        )


def _num_terminals(node: Node) -> int:
    if isinstance(node, Text):
        return len(node.value)
    return isinstance(node, CharClass) + sum(map(_num_terminals, children(node)))


def _with_shared_beginnings(rules: dict[str, Node]) -> dict[str, Node]:
    """The same rules, choices between texts rewritten; some may be rules of their own."""
    found: dict[str, Node] = {}

    def new_rule(node: Node) -> Rule:
        name = f"{len(found)} of {len(rules)}"  # no name of a user's has a space in it
        found[name] = node
        return Rule(name)

    def rewritten(node: Node) -> Node:
        if isinstance(node, Sequence):
            return Sequence(tuple(map(rewritten, node.parts)))
        if isinstance(node, Repeat):
            return Repeat(rewritten(node.node), node.least, node.most)
        if not isinstance(node, Choice):
            return node
        plain = {option: _text(option, rules) for option in node.options}
        texts = [text for text in plain.values() if text is not None]
        others = [rewritten(option) for option, text in plain.items() if text is None]
        if len(texts) < 2:
            return Choice(tuple(map(rewritten, node.options)))
        shared = factored(texts, new_rule)
        return Choice((shared, *others)) if others else shared

    for name, node in rules.items():
        found[name] = rewritten(node)
    return found


def _text(node: Node, rules: dict[str, Node]) -> str | None:
    """What node produces if it is one text, by itself or as a rule."""
    node = rules[node.name] if isinstance(node, Rule) else node
    return node.value if isinstance(node, Text) else None


def _lark(node: Node, names: dict[str, str]) -> str:
    if isinstance(node, Text):
        return " ".join(f"/{escaped(ord(c))}/" for c in node.value) or '""'
    if isinstance(node, CharClass):
        return f"/{class_regex(node)}/"
    if isinstance(node, Rule):
        return names[node.name]
    if isinstance(node, Sequence):
        return " ".join(_lark(part, names) for part in node.parts) or '""'
    if isinstance(node, Choice):
        return "(" + " | ".join(_lark(option, names) for option in node.options) + ")"
    return f"({_lark(node.node, names)}){repeat_suffix(node)}"
