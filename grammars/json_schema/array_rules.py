"""Arrays to rules: items by position, counted where counts matter."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..matcher import GrammarError
from . import limits
from .arrays import Arrays, Contains
from .emptiness import is_empty
from .formulas import Formula, conjunction, disjunction, negation
from .rules import Rule, RuleRef, Symbol, Times
from .shapes import meet
from .unique_rules import write_unique_array

if TYPE_CHECKING:
    from .writer import Writer


def write_array(writer: Writer, rule: Rule, arrays: Arrays) -> None:
    """Add the ways to write such an array to the rule."""
    if arrays.is_unique and not _differ_anyway(writer, arrays):
        write_unique_array(writer, rule, arrays)
    elif arrays.contains:
        _CountingWriter(writer, arrays).write(rule)
    else:
        _write_plain(writer, rule, arrays)


def _write_plain(writer: Writer, rule: Rule, arrays: Arrays) -> None:
    marks = writer.marks
    if arrays.low == 0:
        rule.add(marks.empty_array)
    if arrays.high == 0:
        return
    if not arrays.prefix:
        item = writer.symbol(arrays.rest)
        most = None if arrays.high is None else arrays.high - 1
        more = Times((marks.comma, item), max(arrays.low - 1, 0), most)
        rule.add(marks.open_array, item, *(() if most == 0 else (more,)), marks.close_array)
        return
    first = writer.symbol(arrays.prefix[0])
    rule.add(marks.open_array, first, _after(writer, arrays, 1), marks.close_array)


def _after(writer: Writer, arrays: Arrays, count: int) -> RuleRef:
    """What may follow the first `count` items of an array with items by position."""
    reference, rule = writer.rules.new()
    if arrays.low <= count:
        rule.add()
    if arrays.high is not None and count >= arrays.high:
        return reference
    item = writer.symbol(arrays.item(count))
    if count >= len(arrays.prefix):
        most = None if arrays.high is None else arrays.high - count
        rule.alternatives.clear()
        rule.add(Times((writer.marks.comma, item), max(arrays.low - count, 0), most))
        return reference
    rule.add(writer.marks.comma, item, _after(writer, arrays, count + 1))
    return reference


def _differ_anyway(writer: Writer, arrays: Arrays) -> bool:
    """Whether no two items could be equal."""
    if arrays.high is None or arrays.high > 8:
        return False
    translation = writer.translation
    shapes = [translation.shape(arrays.item(index)) for index in range(arrays.high)]
    return all(
        is_empty(meet(shapes[i], shapes[j]), translation)
        for j in range(len(shapes))
        for i in range(j)
    )


class _CountingWriter:
    """A state is the number of items and how many of them satisfy each contains, up to where it
    matters."""

    def __init__(self, writer: Writer, arrays: Arrays) -> None:
        self.writer = writer
        self.arrays = arrays
        starts = [c.start for c in arrays.contains]
        # Beyond this many items, one more makes no difference but to maxItems.
        self.cap = max(len(arrays.prefix), arrays.low, *starts)
        if arrays.high is not None:
            self.cap = max(self.cap, arrays.high)
        self.states: dict[tuple[int, tuple[int, ...]], RuleRef] = {}

    def write(self, rule: Rule) -> None:
        marks = self.writer.marks
        start = (0,) * len(self.arrays.contains)
        if self._may_end(0, start):
            rule.add(marks.empty_array)
        for formula, counts in self._steps(0, start):
            symbol = self.writer.symbol(formula)
            rule.add(marks.open_array, symbol, self._state(1, counts), marks.close_array)

    def _state(self, index: int, counts: tuple[int, ...]) -> RuleRef:
        """What may follow `index` items."""
        index = min(index, self.cap)
        known = self.states.get((index, counts))
        if known is not None:
            return known
        if len(self.states) >= limits.MAX_ARRAY_STATES:
            raise GrammarError("counting this many items by contains is too costly")
        reference, rule = self.writer.rules.new()
        self.states[index, counts] = reference
        comma = self.writer.marks.comma
        steps = self._steps(index, counts)
        here = [formula for formula, after in steps if self._is_here(index, counts, after)]
        # Items that lead back to this state are a repetition, which parses faster than recursion.
        loop: tuple[Symbol, ...] = ()
        if here:
            loop = (Times((comma, self.writer.symbol(disjunction(here))), 0, None),)
        if self._may_end(index, counts):
            rule.add(*loop)
        for formula, after in steps:
            if not self._is_here(index, counts, after):
                following = self._state(index + 1, after)
                rule.add(*loop, comma, self.writer.symbol(formula), following)
        return reference

    def _is_here(self, index: int, counts: tuple[int, ...], after: tuple[int, ...]) -> bool:
        return after == counts and index == self.cap and self.arrays.high is None

    def _may_end(self, index: int, counts: tuple[int, ...]) -> bool:
        return index >= self.arrays.low and all(
            count >= c.low for c, count in zip(self.arrays.contains, counts, strict=True)
        )

    def _steps(self, index: int, counts: tuple[int, ...]) -> list[tuple[Formula, tuple[int, ...]]]:
        """Formulas of the next item, and the counts after it."""
        if self.arrays.high is not None and index >= self.arrays.high:
            return []
        steps: list[tuple[Formula, tuple[int, ...]]] = [(self.arrays.item(index), ())]
        for c, count in zip(self.arrays.contains, counts, strict=True):
            steps = [
                (conjunction((formula, extra)), (*before, after))
                for formula, before in steps
                for extra, after in _counted(c, index, count)
            ]
        return steps


def _counted(c: Contains, index: int, count: int) -> list[tuple[Formula, int]]:
    """How the next item may count: what it then has to satisfy, and the count after it."""
    if index < c.start or (c.high is None and count >= c.low):
        return [(conjunction(()), count)]
    if c.high is None:
        return [(c.formula, count + 1), (conjunction(()), count)]
    options = [(negation(c.formula), count)]
    if count < c.high:
        options.append((c.formula, count + 1))
    return options
