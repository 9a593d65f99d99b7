"""Rules as the text of a grammar for llguidance.

The engine reads every character of it in front of an answer, so the text is kept short: what is
used once stands where it is used, and what many terminals hold has a name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from .regex_ast import ALL
from .regex_lark import json_string_terminal
from .rules import Alternative, RuleRef, Rules, Symbol, Terminal, Times, is_finite

_MAX_INLINED = 20  # rules within rules: a long chain of them stays a chain
_ANY_STRING = json_string_terminal(ALL)


def grammar_text(rules: Rules, start: Symbol) -> str | None:
    """The grammar from start; None if nothing finite can be derived from it."""
    finite = rules.finite()
    if not is_finite((start,), finite):
        return None
    return _Text(rules, finite).written(start)


class _Text:
    def __init__(self, rules: Rules, finite: list[bool]) -> None:
        self._rules = rules
        self._finite = finite
        self._expressions = {name: text for text, name in rules.terminals.items()}
        self._alternatives: dict[int, list[Alternative]] = {}  # of rules that are reached
        self._uses: Counter[int | str] = Counter()  # of rules by number, of terminals by name
        self._named: dict[str, None] = {}  # terminals that are referred to by name
        self._defined: dict[int, None] = {}  # rules likewise

    def written(self, start: Symbol) -> str:
        self._reach(start)
        lines = [f"start: {self._sequence((start,), 0)}"]
        done = 0
        while done < len(self._defined):  # grows while rules are written
            number = list(self._defined)[done]
            done += 1
            parameter = "::_" if self._rules.rule(RuleRef(number)).has_parameter else ""
            options = [self._alternative(one) for one in self._alternatives[number]]
            lines.append(f"r{number}{parameter}: " + "\n  | ".join(dict.fromkeys(options)))
        return "\n".join([*lines, *self._terminal_lines()]) + "\n"

    def _reach(self, start: Symbol) -> None:
        """Count the uses of all that is reached from start."""
        stack = self._used_rules((start,))
        while stack:
            number = stack.pop()
            if number not in self._alternatives:
                rule = self._rules.rule(RuleRef(number))
                kept = [one for one in rule.alternatives if is_finite(one.symbols, self._finite)]
                self._alternatives[number] = kept
                for alternative in kept:
                    stack += self._used_rules(alternative.symbols)

    def _used_rules(self, symbols: Sequence[Symbol]) -> list[int]:
        found: list[int] = []
        for symbol in symbols:
            if isinstance(symbol, Terminal):
                self._uses[symbol.name] += 1
            elif isinstance(symbol, RuleRef):
                self._uses[symbol.number] += 1
                found.append(symbol.number)
            elif is_finite(symbol.symbols, self._finite):
                found += self._used_rules(symbol.symbols)
        return found

    def _alternative(self, alternative: Alternative) -> str:
        guard = f" %if {alternative.guard}" if alternative.guard else ""
        return self._sequence(alternative.symbols, 0) + guard

    def _sequence(self, symbols: Sequence[Symbol], depth: int) -> str:
        parts: list[str] = []
        self._write(symbols, depth, parts)
        return " ".join(parts) or '""'

    def _write(self, symbols: Sequence[Symbol], depth: int, parts: list[str]) -> None:
        for symbol in symbols:
            if isinstance(symbol, Terminal):
                parts.append(self._terminal(symbol.name))
            elif isinstance(symbol, RuleRef):
                only = self._inlined(symbol) if depth < _MAX_INLINED else None
                if only is not None:
                    self._write(only.symbols, depth + 1, parts)
                else:
                    self._defined[symbol.number] = None
                    parameter = f"::{symbol.parameter}" if symbol.parameter else ""
                    parts.append(f"r{symbol.number}{parameter}")
            elif is_finite(symbol.symbols, self._finite):
                parts.append(f"({self._sequence(symbol.symbols, depth)}){_count(symbol)}")

    def _inlined(self, reference: RuleRef) -> Alternative | None:
        """What stands for a rule that is used once and has one alternative."""
        alternatives = self._alternatives[reference.number]
        if self._uses[reference.number] != 1 or len(alternatives) != 1:
            return None
        if self._rules.rule(reference).has_parameter or alternatives[0].guard:
            return None
        return alternatives[0]

    def _terminal(self, name: str) -> str:
        expression = self._expressions[name]
        if self._uses[name] == 1 and expression.find(expression[0], 1) == len(expression) - 1:
            return expression  # one regex: no slash stands within
        if expression[0] == '"' and self._uses[name] == 1:
            return expression
        self._named[name] = None
        return name

    def _terminal_lines(self) -> list[str]:
        """The named terminals; the usual string in them has a name if several hold it."""
        found = {name: self._expressions[name] for name in self._named}
        holders = [name for name, expression in found.items() if _ANY_STRING in expression]
        if len(holders) > 1:
            whole = next((name for name in holders if found[name] == _ANY_STRING), "S")
            for name in holders:
                found[name] = found[name].replace(_ANY_STRING, whole)
            found[whole] = _ANY_STRING
        return [f"{name}: {expression}" for name, expression in found.items()]


def _count(times: Times) -> str:
    if times.high is None and times.low < 2:
        return "*" if times.low == 0 else "+"
    if (times.low, times.high) == (0, 1):
        return "?"
    return f"{{{times.low},{'' if times.high is None else times.high}}}"
