"""A context-free grammar under construction.

Rules are pruned before they are written (rules_text.py): what can never be completed is left out,
so that no output runs into a dead end and a schema without finite instances is seen.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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

    @property
    def terminals(self) -> Mapping[str, str]:
        """Names by expression, in the order in which they came up."""
        return self._terminals

    def finite(self) -> list[bool]:
        """For each rule, whether something finite can be derived: the least fixpoint."""
        finite = [False] * len(self._rules)
        waiting: dict[int, list[list[int]]] = {}  # by rule: alternatives that need it
        ready: list[int] = []
        for number, rule in enumerate(self._rules):
            for alternative in rule.alternatives:
                needed = set(_needed(alternative.symbols))
                if not needed:
                    ready.append(number)
                    break
                entry = [len(needed), number]
                for one in needed:
                    waiting.setdefault(one, []).append(entry)
        while ready:
            number = ready.pop()
            if not finite[number]:
                finite[number] = True
                for entry in waiting.get(number, ()):
                    entry[0] -= 1
                    if entry[0] == 0:
                        ready.append(entry[1])
        return finite


def is_finite(symbols: Sequence[Symbol], finite: Sequence[bool]) -> bool:
    """Whether something finite can be derived from symbols in a row; finite: by rule."""
    for symbol in symbols:
        if isinstance(symbol, RuleRef):
            if not finite[symbol.number]:
                return False
        elif isinstance(symbol, Times) and symbol.low and not is_finite(symbol.symbols, finite):
            return False
    return True


def _needed(symbols: Sequence[Symbol]) -> Iterator[int]:
    """The rules without which symbols cannot be completed."""
    for symbol in symbols:
        if isinstance(symbol, RuleRef):
            yield symbol.number
        elif isinstance(symbol, Times) and symbol.low:
            yield from _needed(symbol.symbols)
