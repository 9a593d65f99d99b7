"""parse_gbnf: grammars in the notation of llama.cpp, as trees.

Rules are `name ::= ...`, with "literals", [classes], `.`, (groups), `|`, and the repeats * + ? {m}
{m,} {m,n}. A rule ends where the next begins, whatever the line breaks.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TypeAlias

from .json_schema import charsets
from .matcher import GrammarError

MAX_GROUP_DEPTH = 100
MAX_REPEAT = 100_000


@dataclass(frozen=True, slots=True)
class Text:
    """A literal."""

    value: str


@dataclass(frozen=True, slots=True)
class CharClass:
    """One character out of ranges, or one outside of them; bounds are code points, inclusive."""

    ranges: tuple[tuple[int, int], ...]
    negated: bool


@dataclass(frozen=True, slots=True)
class Rule:
    """What another rule produces."""

    name: str


@dataclass(frozen=True, slots=True)
class Sequence:
    """One part after the other; may be empty."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """Any one of options."""

    options: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """node least to most times; most None: without end."""

    node: Node
    least: int
    most: int | None


Node: TypeAlias = Text | CharClass | Rule | Sequence | Choice | Repeat

_TOKEN = re.compile(
    r"""(?P<space>(?:\s|\#[^\n]*)+)
    |(?P<define>[A-Za-z0-9_-]+(?:\s|\#[^\n]*)*::=)
    |(?P<name>[A-Za-z0-9_-]+)
    |(?P<text>"(?:[^"\\]|\\.)*")
    |(?P<char_class>\[(?:[^\]\\]|\\.)*\])
    |(?P<repeat>[*+?]|\{\s*\d+\s*(?:,\s*\d*\s*)?\})
    |(?P<symbol>[.|()])""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPE = re.compile(r"\\(x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}|.)", re.DOTALL)
_CONTROL = {"n": "\n", "r": "\r", "t": "\t"}
_LITERAL_ESCAPES = "\\\"'[]^-/."


def parse_gbnf(text: str) -> dict[str, Node]:
    """The rules by name, in their order. Raises GrammarError saying what is wrong where.

    Every rule that is used is defined, and there is one called root.
    """
    rules = _Parser(text).rules()
    if "root" not in rules:
        raise GrammarError("the grammar has no rule called root")
    for name, node in rules.items():
        for used in used_rules(node):
            if used not in rules:
                raise GrammarError(f"rule {name} uses {used}, which is not defined")
    return rules


def used_rules(node: Node) -> set[str]:
    """The names of the rules in node."""
    if isinstance(node, Rule):
        return {node.name}
    return set().union(*(used_rules(child) for child in children(node)))


def children(node: Node) -> tuple[Node, ...]:
    """The nodes directly below."""
    if isinstance(node, Sequence):
        return node.parts
    if isinstance(node, Choice):
        return node.options
    return (node.node,) if isinstance(node, Repeat) else ()


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = self._scan()
        self._index = 0
        self._depth = 0

    def rules(self) -> dict[str, Node]:
        found: dict[str, Node] = {}
        while self._index < len(self._tokens):
            kind, value, position = self._tokens[self._index]
            if kind != "define":
                raise self._error(f"expected `name ::=`, found {value!r}", position)
            name = re.match(r"[A-Za-z0-9_-]+", value)
            assert name is not None
            if name.group() in found:
                raise self._error(f"rule {name.group()} is defined twice", position)
            self._index += 1
            found[name.group()] = self._choice()
            if self._peek() == ")":
                raise self._error("unmatched `)`", self._tokens[self._index][2])
        return found

    def _scan(self) -> list[tuple[str, str, int]]:
        tokens = []
        position = 0
        while position < len(self._text):
            match = _TOKEN.match(self._text, position)
            if match is None:
                found = self._text[position : position + 10]
                raise self._error(f"cannot be read: {found!r}", position)
            if match.lastgroup and match.lastgroup != "space":
                tokens.append((match.lastgroup, match.group(), position))
            position = match.end()
        return tokens

    def _peek(self) -> str:
        """The next symbol, or "" where a rule ends."""
        if self._index >= len(self._tokens) or self._tokens[self._index][0] == "define":
            return ""
        return self._tokens[self._index][1]

    def _choice(self) -> Node:
        options = [self._sequence()]
        while self._peek() == "|":
            self._index += 1
            options.append(self._sequence())
        return options[0] if len(options) == 1 else Choice(tuple(options))

    def _sequence(self) -> Node:
        parts: list[Node] = []
        while self._peek() not in ("", "|", ")"):
            kind, value, position = self._tokens[self._index]
            if kind == "repeat":
                if not parts:
                    raise self._error(f"nothing to repeat before {value!r}", position)
                parts[-1] = self._repeated(parts[-1], value, position)
                self._index += 1
            else:
                parts.append(self._item(kind, value, position))
        return parts[0] if len(parts) == 1 else Sequence(tuple(parts))

    def _item(self, kind: str, value: str, position: int) -> Node:
        self._index += 1
        if kind == "name":
            return Rule(value)
        if kind == "text":
            return Text("".join(self._characters(value[1:-1], position)))
        if kind == "char_class":
            return self._char_class(value[1:-1], position)
        if value == ".":
            return CharClass((), negated=True)
        return self._group(position)

    def _group(self, position: int) -> Node:
        self._depth += 1
        if self._depth > MAX_GROUP_DEPTH:
            raise self._error(f"groups are nested deeper than {MAX_GROUP_DEPTH}", position)
        node = self._choice()
        if self._peek() != ")":
            raise self._error("unmatched `(`", position)
        self._index += 1
        self._depth -= 1
        return node

    def _repeated(self, node: Node, value: str, position: int) -> Node:
        simple: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
        if value in simple:
            return Repeat(node, *simple[value])
        least_text, comma, most_text = (part.strip() for part in value[1:-1].partition(","))
        least = int(least_text)
        most = int(most_text) if most_text else (None if comma else least)
        if max(least, most or 0) > MAX_REPEAT:
            raise self._error(f"{value} repeats more than {MAX_REPEAT} times", position)
        if most is not None and most < least:
            raise self._error(f"{value} ends before it begins", position)
        return Repeat(node, least, most)

    def _characters(self, text: str, position: int) -> list[str]:
        """The characters of text, each escape read as one."""
        if "\\" not in text:
            return list(text)
        found = []
        index = 0
        while index < len(text):
            match = _ESCAPE.match(text, index)
            found.append(text[index] if match is None else self._escaped(match, position))
            index = index + 1 if match is None else match.end()
        return found

    def _escaped(self, match: re.Match[str], position: int) -> str:
        body = match.group(1)
        if len(body) > 1:
            code = int(body[1:], 16)
            if code > 0x10FFFF or 0xD800 <= code <= 0xDFFF:
                raise self._error(f"{match.group()} is not a character", position)
            return chr(code)
        if body in _CONTROL:
            return _CONTROL[body]
        if body not in _LITERAL_ESCAPES:
            raise self._error(f"unknown escape {match.group()}", position)
        return body

    def _char_class(self, body: str, position: int) -> Node:
        negated = body.startswith("^")
        body = body[1:] if negated else body
        chars = self._characters(body, position)
        # An escaped dash is a character, not the sign of a range.
        dashes = [c == "-" for c in self._characters(body.replace("\\-", "x"), position)]
        ranges: list[tuple[int, int]] = []
        index = 0
        while index < len(chars):
            low = high = ord(chars[index])
            index += 1
            if index + 1 < len(chars) and dashes[index]:
                high = ord(chars[index + 1])
                index += 2
            if high < low:
                raise self._error(f"range {chr(low)}-{chr(high)} ends before it begins", position)
            ranges.append((low, high))
        if not _allows_any(ranges, negated):
            shown = f"[{'^' if negated else ''}{body}]"
            raise self._error(f"the class {shown[:60]} allows no character", position)
        return CharClass(tuple(ranges), negated)

    def _error(self, reason: str, position: int) -> GrammarError:
        line = self._text.count("\n", 0, position) + 1
        return GrammarError(f"grammar, line {line}: {reason}")


def _allows_any(ranges: list[tuple[int, int]], negated: bool) -> bool:
    named = charsets.union(ranges)
    return bool(charsets.inverse(named) if negated else named)
