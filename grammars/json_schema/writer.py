"""Formulas to rules of the grammar."""

from __future__ import annotations

from ..matcher import GrammarError
from ..spec import JsonWhitespace
from . import limits, regex_match
from .array_rules import write_array
from .finite_values import FiniteValues
from .formulas import Formula
from .number_lark import numbers_terminal
from .object_rules import write_object
from .punctuation import punctuation
from .regex_ast import Nothing, Regex
from .regex_lark import json_string_terminal
from .rules import RuleRef, Rules, Symbol, Terminal
from .rules_text import grammar_text
from .shapes import Shape
from .translation import Translation


class Writer:
    """Writes each formula once; what it refers to is written when it is asked for."""

    def __init__(self, translation: Translation, whitespace: JsonWhitespace) -> None:
        self.translation = translation
        self.rules = Rules()
        self.marks = punctuation(self.rules, whitespace)
        self.finite = FiniteValues(translation)
        self._symbols: dict[Formula, Symbol] = {}
        self._pending: list[tuple[Formula, RuleRef]] = []

    def grammar(self, root: Formula) -> str | None:
        """The text of the whole grammar; None if no finite text satisfies the formula."""
        start = self.symbol(root)
        while self._pending:
            formula, reference = self._pending.pop()
            self._write(formula, reference)
            if len(self.rules) > limits.MAX_RULES * 4:
                raise GrammarError("the schema is too large once its parts are combined")
        return grammar_text(self.rules, start)

    def symbol(self, formula: Formula) -> Symbol:
        """What stands for a value that satisfies the formula."""
        known = self._symbols.get(formula)
        if known is None:
            shape = self.translation.shape(formula)
            if shape.arrays or shape.objects or shape.is_plainly_empty:
                known, _ = self.rules.new()
                self._pending.append((formula, known))
            else:
                terminal = self._scalars(shape)
                known = self.rules.new()[0] if terminal is None else terminal
            self._symbols[formula] = known
        return known

    def string(self, regex: Regex) -> Terminal | None:
        """A JSON string of the language; None if it has none."""
        if isinstance(regex, Nothing) or regex_match.is_empty(regex):
            return None
        return self.rules.terminal(json_string_terminal(regex))

    def _write(self, formula: Formula, reference: RuleRef) -> None:
        shape = self.translation.shape(formula)
        rule = self.rules.rule(reference)
        scalars = self._scalars(shape)
        if scalars is not None:
            rule.add(scalars)
        for array in shape.arrays:
            write_array(self, rule, array)
        for case in shape.objects:
            write_object(self, rule, case)

    def _scalars(self, shape: Shape) -> Terminal | None:
        """One terminal for all values that are neither arrays nor objects."""
        options = []
        if not isinstance(shape.strings, Nothing) and not regex_match.is_empty(shape.strings):
            options.append(json_string_terminal(shape.strings))
        options.extend(numbers_terminal(case) for case in shape.numbers)
        words = [
            *(("true",) if True in shape.booleans else ()),
            *(("false",) if False in shape.booleans else ()),
            *(("null",) if shape.null else ()),
        ]
        if words:
            options.append(f"/{'|'.join(words)}/")
        return self.rules.terminal(" | ".join(options)) if options else None
