"""lark_of_gbnf: GBNF as a Lark grammar that means the same.

In GBNF any split of a text between rules counts. A Lark grammar has terminals, which take as
much text as they can: "a" "bc" | "ab" "d" would not match abc. So a grammar without recursion
becomes one terminal, and in others each character is a terminal of its own.
"""

from __future__ import annotations

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
    used_rules,
)
from .matcher import GrammarError

MAX_REGEX_CHARACTERS = 20_000  # of a grammar written out as one regular expression


def lark_of_gbnf(text: str) -> str:
    """Raises GrammarError for a grammar that cannot be read, or whose root has no end."""
    rules = parse_gbnf(text)
    _raise_if_endless(rules)
    regex = _as_regex(rules)
    if regex is not None:
        return f"start: TEXT\nTEXT: /{regex}/\n" if regex else 'start: ""\n'
    names = {name: f"rule_{index}" for index, name in enumerate(rules)}
    names["root"] = "start"
    return "".join(f"{names[name]}: {_lark(node, names)}\n" for name, node in rules.items())


def _raise_if_endless(rules: dict[str, Node]) -> None:
    """Every rule that root reaches must be able to end; others would never let a text end."""
    ending: set[str] = set()
    size = -1
    while len(ending) != size:
        size = len(ending)
        ending |= {name for name, node in rules.items() if _can_end(node, ending)}
    reached, queue = {"root"}, ["root"]
    while queue:
        new = used_rules(rules[queue.pop()]) - reached
        reached |= new
        queue += new
    for name in rules:
        if name in reached and name not in ending:
            raise GrammarError(f"rule {name} can never end: it always needs itself again")


def _can_end(node: Node, ending: set[str]) -> bool:
    if isinstance(node, Rule):
        return node.name in ending
    if isinstance(node, Choice):
        return any(_can_end(option, ending) for option in node.options)
    if isinstance(node, Repeat) and node.least == 0:
        return True
    return all(_can_end(child, ending) for child in children(node))


def _as_regex(rules: dict[str, Node]) -> str | None:
    """The whole grammar as one regular expression; None if it is recursive or too long."""
    done: dict[str, str] = {}
    for name in _innermost_first(rules):
        if used_rules(rules[name]) - done.keys():
            return None
        done[name] = _regex(rules[name], done)
        if len(done[name]) > MAX_REGEX_CHARACTERS:
            return None
    return done["root"]


def _innermost_first(rules: dict[str, Node]) -> list[str]:
    """The rules that root needs, each after those it uses, as far as there is such an order."""
    order: list[str] = []
    open_: set[str] = set()
    stack = [("root", iter(sorted(used_rules(rules["root"]))))]
    open_.add("root")
    while stack:
        name, rest = stack[-1]
        following = next((used for used in rest if used not in open_), None)
        if following is None:
            order.append(name)
            stack.pop()
        else:
            open_.add(following)
            stack.append((following, iter(sorted(used_rules(rules[following])))))
    return order


def _regex(node: Node, done: dict[str, str]) -> str:
    if isinstance(node, Text):
        return "".join(_escaped(ord(c)) for c in node.value)
    if isinstance(node, CharClass):
        return _class_regex(node)
    if isinstance(node, Rule):
        return f"(?:{done[node.name]})"
    if isinstance(node, Sequence):
        return "".join(_regex(part, done) for part in node.parts)
    if isinstance(node, Choice):
        return "(?:" + "|".join(_regex(option, done) for option in node.options) + ")"
    return f"(?:{_regex(node.node, done)}){_times(node)}"


def _lark(node: Node, names: dict[str, str]) -> str:
    if isinstance(node, Text):
        return " ".join(f"/{_escaped(ord(c))}/" for c in node.value) or '""'
    if isinstance(node, CharClass):
        return f"/{_class_regex(node)}/"
    if isinstance(node, Rule):
        return names[node.name]
    if isinstance(node, Sequence):
        return " ".join(_lark(part, names) for part in node.parts) or '""'
    if isinstance(node, Choice):
        return "(" + " | ".join(_lark(option, names) for option in node.options) + ")"
    return f"({_lark(node.node, names)}){_times(node)}"


def _times(node: Repeat) -> str:
    simple = {(0, None): "*", (1, None): "+", (0, 1): "?"}
    most = "" if node.most is None else node.most
    return simple.get((node.least, node.most)) or f"{{{node.least},{most}}}"


def _class_regex(node: CharClass) -> str:
    if not node.ranges:
        return "(?s:.)"
    body = "".join(
        _escaped(low) if low == high else f"{_escaped(low)}-{_escaped(high)}"
        for low, high in node.ranges
    )
    return f"[{'^' if node.negated else ''}{body}]"


def _escaped(code: int) -> str:
    char = chr(code)
    return char if char.isascii() and char.isalnum() else f"\\x{{{code:x}}}"
