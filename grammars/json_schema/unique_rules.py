"""Arrays of distinct items, where few enough values are possible to remember each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .arrays import Arrays
from .errors import UnsupportedKeyword
from .formulas import Constant
from .limits import MAX_UNIQUE_VALUES
from .rules import Rule, RuleRef

if TYPE_CHECKING:
    from .writer import Writer


def write_unique_array(writer: Writer, rule: Rule, arrays: Arrays) -> None:
    """Add the ways to write such an array.

    Raises UnsupportedKeyword where items have many values.
    """
    if arrays.contains:
        raise UnsupportedKeyword(
            "uniqueItems next to contains cannot be enforced", keyword="uniqueItems"
        )
    if arrays.prefix and arrays.low > 1:
        # The first items might use up the values that a later one needs.
        raise UnsupportedKeyword(
            "uniqueItems next to prefixItems and minItems cannot be enforced", keyword="uniqueItems"
        )
    positions = len(arrays.prefix) + 1
    if arrays.high is not None:
        positions = min(positions, arrays.high)
    choices = [writer.finite.of(arrays.item(index)) for index in range(positions)]
    if any(values is None for values in choices):
        raise _too_many_values()
    known = [values for values in choices if values is not None]
    bits = {text: bit for bit, text in enumerate(dict.fromkeys(v for c in known for v in c))}
    if len(bits) > MAX_UNIQUE_VALUES:
        raise _too_many_values()
    _Unique(writer, arrays, known, bits).write(rule)


def _too_many_values() -> UnsupportedKeyword:
    return UnsupportedKeyword(
        "uniqueItems needs items of few possible values (an enum)", keyword="uniqueItems"
    )


class _Unique:
    """Rules whose parameter has a bit for each value that already stands in the array."""

    def __init__(
        self, writer: Writer, arrays: Arrays, choices: list[list[str]], bits: dict[str, int]
    ) -> None:
        self.writer = writer
        self.arrays = arrays
        self.choices = choices
        self.bits = bits
        self.all_bits = f"[0:{max(len(bits), 1)}]"
        self.items: dict[int, RuleRef] = {}

    def write(self, rule: Rule) -> None:
        marks = self.writer.marks
        if self.arrays.low == 0:
            rule.add(marks.empty_array)
        if self.arrays.low <= len(self.bits):
            first = RuleRef(self._item(0).number, "0x0")
            rule.add(marks.open_array, first, marks.close_array)

    def _item(self, index: int) -> RuleRef:
        """The item at an index and all that follow it."""
        index = min(index, len(self.choices) - 1)
        known = self.items.get(index)
        if known is not None:
            return known
        reference, rule = self.writer.rules.new(has_parameter=True)
        self.items[index] = reference
        tail, followers = self.writer.rules.new(has_parameter=True)
        for text in self.choices[index]:
            bit = self.bits[text]
            value = self.writer.symbol(Constant(text))
            rule.add(value, RuleRef(tail.number, f"set_bit({bit})"), guard=f"bit_clear({bit})")
        low, high = self.arrays.low, self.arrays.high
        followers.add(guard=f"bit_count_ge({self.all_bits}, {low})")
        if high is None or high > 1:
            guard = self._some_left(index + 1)
            if high is not None:
                guard = f"and({guard}, bit_count_lt({self.all_bits}, {high}))"
            following = RuleRef(self._item(index + 1).number, "_")
            followers.add(self.writer.marks.comma, following, guard=guard)
        return reference

    def _some_left(self, index: int) -> str:
        """The condition that the item at an index has a value left: no comma leads nowhere."""
        choices = self.choices[min(index, len(self.choices) - 1)]
        if len(choices) == len(self.bits):
            return f"bit_count_lt({self.all_bits}, {len(self.bits)})"
        guard = "not(true)"
        for text in choices:
            guard = f"or(bit_clear({self.bits[text]}), {guard})"
        return guard
