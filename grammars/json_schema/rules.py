"""A context-free grammar under construction, and its text for llguidance.

Rules are pruned before they are written: what can never be completed is left out, so that no
output runs into a dead end and a schema without finite instances is seen.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Terminal:
    name: str


@dataclass(frozen=True, slots=True)
class RuleRef:
    """A rule; parameter: how its parameter follows from that of the rule it stands in."""

    number: int
    parameter: str | None = None


@dataclass(frozen=True, slots=True)
class Times:
    """Symbols in a row, as often as allowed (high None: without end)."""

    symbols: tuple[Symbol, ...]
    low: int
    high: int | None


Symbol: TypeAlias = Terminal | RuleRef | Times


@dataclass(frozen=True, slots=True)
class Alternative:
    """One way to write a rule; guard: the condition on the rule's parameter."""

    symbols: tuple[Symbol, ...]
    guard: str | None = None


@dataclass(slots=True)
class Rule:
    has_parameter: bool = False
    alternatives: list[Alternative] = field(default_factory=list)

    def add(self, *symbols: Symbol, guard: str | None = None) -> None:
        self.alternatives.append(Alternative(symbols, guard))


class Rules:
    """The grammar: terminals by their expression, rules by number."""

    def __init__(self) -> None:
        self._terminals: dict[str, str] = {}
        self._rules: list[Rule] = []

    def terminal(self, expression: str) -> Terminal:
        name = self._terminals.setdefault(expression, f"T{len(self._terminals)}")
        return Terminal(name)

    def new(self, *, has_parameter: bool = False) -> tuple[RuleRef, Rule]:
        rule = Rule(has_parameter)
        self._rules.append(rule)
        return RuleRef(len(self._rules) - 1), rule

    def rule(self, reference: RuleRef) -> Rule:
        return self._rules[reference.number]

    def __len__(self) -> int:
        return len(self._rules)

    def text(self, start: Symbol) -> str | None:
        """The grammar from start; None if nothing finite can be derived from it."""
        finite = self._finite()
        if not _is_finite(start, finite):
            return None
        lines = [f"start: {self._written((start,), finite)}"]
        used_terminals: dict[str, None] = {}
        _note_terminals((start,), used_terminals)
        for number in self._reached(start, finite):
            rule = self._rules[number]
            parameter = "::_" if rule.has_parameter else ""
            options = []
            for alternative in rule.alternatives:
                if all(_is_finite(symbol, finite) for symbol in alternative.symbols):
                    guard = f" %if {alternative.guard}" if alternative.guard else ""
                    options.append(self._written(alternative.symbols, finite) + guard)
                    _note_terminals(alternative.symbols, used_terminals)
            lines.append(f"r{number}{parameter}: " + "\n  | ".join(dict.fromkeys(options)))
        for expression, name in self._terminals.items():
            if name in used_terminals:
                lines.append(f"{name}: {expression}")
        return "\n".join(lines) + "\n"

    def _finite(self) -> list[bool]:
        """For each rule, whether something finite can be derived: the least fixpoint."""
        finite = [False] * len(self._rules)
        order = range(len(self._rules))
        changed = True
        while changed:
            changed = False
            order = order[::-1]  # chains of rules run either way
            for number in order:
                if not finite[number] and any(
                    all(_is_finite(symbol, finite) for symbol in alternative.symbols)
                    for alternative in self._rules[number].alternatives
                ):
                    finite[number] = changed = True
        return finite

    def _reached(self, start: Symbol, finite: list[bool]) -> list[int]:
        seen: dict[int, None] = {}
        stack = [ref.number for ref in _references((start,), finite)]
        while stack:
            number = stack.pop()
            if number in seen:
                continue
            seen[number] = None
            for alternative in self._rules[number].alternatives:
                if all(_is_finite(symbol, finite) for symbol in alternative.symbols):
                    stack.extend(ref.number for ref in _references(alternative.symbols, finite))
        return sorted(seen)

    def _written(self, symbols: tuple[Symbol, ...], finite: list[bool]) -> str:
        parts = []
        for symbol in symbols:
            if isinstance(symbol, Terminal):
                parts.append(symbol.name)
            elif isinstance(symbol, RuleRef):
                parameter = f"::{symbol.parameter}" if symbol.parameter else ""
                parts.append(f"r{symbol.number}{parameter}")
            elif all(_is_finite(inner, finite) for inner in symbol.symbols):
                inside = self._written(symbol.symbols, finite)
                parts.append(f"({inside}){_count(symbol)}")
        return " ".join(parts) or '""'


def _count(times: Times) -> str:
    if times.high is None and times.low < 2:
        return "*" if times.low == 0 else "+"
    if (times.low, times.high) == (0, 1):
        return "?"
    return f"{{{times.low},{'' if times.high is None else times.high}}}"


def _is_finite(symbol: Symbol, finite: list[bool]) -> bool:
    if isinstance(symbol, Terminal):
        return True
    if isinstance(symbol, RuleRef):
        return finite[symbol.number]
    return symbol.low == 0 or all(_is_finite(inner, finite) for inner in symbol.symbols)


def _references(symbols: tuple[Symbol, ...], finite: list[bool]) -> Iterator[RuleRef]:
    for symbol in symbols:
        if isinstance(symbol, RuleRef):
            yield symbol
        elif isinstance(symbol, Times) and all(_is_finite(s, finite) for s in symbol.symbols):
            yield from _references(symbol.symbols, finite)


def _note_terminals(symbols: tuple[Symbol, ...], used: dict[str, None]) -> None:
    for symbol in symbols:
        if isinstance(symbol, Terminal):
            used[symbol.name] = None
        elif isinstance(symbol, Times):
            _note_terminals(symbol.symbols, used)
