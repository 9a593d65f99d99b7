"""regex_of: a GBNF grammar without recursion as one regular expression."""

from __future__ import annotations

from collections.abc import Mapping

from .gbnf_parser import CharClass, Choice, Node, Repeat, Rule, Sequence, Text

MAX_CHARACTERS = 400_000  # of the regular expression: about 0.4 s to compile
MAX_STEPS = 4 * MAX_CHARACTERS  # of writing it: parts may be empty
# The engine reads 250 levels, a group with choices and repeats in it being four.
MAX_GROUPS = 60
_OPEN, _CLOSE = "(?:", ")"


def regex_of(rules: Mapping[str, Node]) -> str | None:
    """What root produces. None if that is too long or too deep: a rule is written at each use."""
    written: list[str] = []
    num_characters = num_steps = depth = 0
    todo: list[Node | str] = [rules["root"]]
    while todo:
        item = todo.pop()
        num_steps += 1
        if not isinstance(item, str):
            todo += reversed(_parts(item, rules))
            continue
        written.append(item)
        num_characters += len(item)
        depth += (item == _OPEN) - item.startswith(_CLOSE)
        is_too_long = num_characters > MAX_CHARACTERS or num_steps > MAX_STEPS
        if is_too_long or depth > MAX_GROUPS:
            return None
    return "".join(written)


def class_regex(node: CharClass) -> str:
    """The class as a regular expression."""
    if not node.ranges:
        return "(?s:.)"
    body = "".join(
        escaped(low) if low == high else f"{escaped(low)}-{escaped(high)}"
        for low, high in node.ranges
    )
    return f"[{'^' if node.negated else ''}{body}]"


def escaped(code: int) -> str:
    """The character with this code point, as a regular expression."""
    char = chr(code)
    return char if char.isascii() and char.isalnum() else f"\\x{{{code:x}}}"


def repeat_suffix(node: Repeat) -> str:
    """What stands behind a repeated group."""
    simple = {(0, None): "*", (1, None): "+", (0, 1): "?"}
    most = "" if node.most is None else node.most
    return simple.get((node.least, node.most)) or f"{{{node.least},{most}}}"


def _parts(node: Node, rules: Mapping[str, Node]) -> list[Node | str]:
    """What node is written as, from left to right; a group's brackets are parts of their own."""
    if isinstance(node, Text):
        is_plain = node.value.isascii() and node.value.isalnum()
        return [node.value if is_plain else "".join(escaped(ord(c)) for c in node.value)]
    if isinstance(node, CharClass):
        return [class_regex(node)]
    if isinstance(node, Rule):
        return [rules[node.name]]  # a choice brings its own brackets
    if isinstance(node, Sequence):
        return list(node.parts)
    if isinstance(node, Choice):
        options = [part for option in node.options for part in ("|", option)]
        return [_OPEN, *options[1:], _CLOSE]
    return [_OPEN, node.node, f"{_CLOSE}{repeat_suffix(node)}"]
