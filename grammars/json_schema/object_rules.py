"""Objects to rules: properties in their order, further keys after them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..matcher import GrammarError
from . import limits
from .formulas import NEVER, Formula, conjunction
from .objects import Objects
from .regex_ast import Regex, both, inverse, words
from .regex_lark import json_string_literal
from .rules import Rule, RuleRef, Symbol, Times

if TYPE_CHECKING:
    from .writer import Writer


def write_object(writer: Writer, rule: Rule, objects: Objects) -> None:
    """Add the ways to write such an object to the rule."""
    marks = writer.marks
    _ObjectWriter(writer, objects).write(rule, marks.open_object, marks.close_object)


class _ObjectWriter:
    def __init__(self, writer: Writer, objects: Objects) -> None:
        self.writer = writer
        self.objects = objects
        self.comma = writer.marks.comma
        self.members = [(name, formula) for name, formula in objects.properties if formula != NEVER]
        names = [name for name, _ in objects.properties]
        self.others = inverse(words(names))
        self.is_required = [name in objects.required for name, _ in self.members]

    def write(self, rule: Rule, opening: Symbol, closing: Symbol) -> None:
        if self._is_counted():
            self._write_counted(rule, opening, closing)
            return
        if len(self.objects.some) > 1:
            raise GrammarError("several conditions on some property each cannot be enforced")
        further = self._further()
        some = [self._some(keys, formula) for keys, formula in self.objects.some]
        if not any(self.is_required) and not some:
            rule.add(self.writer.marks.empty_object)
        for body in self._bodies(further, some):
            rule.add(opening, *body, closing)

    def _is_counted(self) -> bool:
        """Whether minProperties or maxProperties say more than required and properties do."""
        objects = self.objects
        most = None if objects.rest else len(self.members)
        low_matters = objects.low > sum(self.is_required) + len(objects.some)
        high_matters = objects.high is not None and (most is None or objects.high < most)
        return low_matters or high_matters

    def _bodies(self, further: RuleRef | None, some: list[RuleRef]) -> list[tuple[Symbol, ...]]:
        """What may stand between the braces, one way for each first member."""
        tail: list[Symbol] = []
        if further is not None:
            tail.append(Times((self.comma, further), 0, None))
        for reference in some:
            tail.extend((self.comma, reference))
        symbols = [self._member(name, formula) for name, formula in self.members]
        if True in self.is_required:
            return [tuple(self._around_required(symbols) + tail)]
        bodies: list[tuple[Symbol, ...]] = []
        rest: list[Symbol] = tail
        # From the last property to the first: each is followed by any of those after it.
        for member in reversed(symbols):
            bodies.append((*member, *rest))
            following, rule = self.writer.rules.new()
            rule.add(Times((self.comma, *member), 0, 1), *rest)
            rest = [following]
        bodies.reverse()
        if further is not None:
            bodies.append((further, *tail))
        if some:
            bodies.append((some[0], *tail[len(tail) - 2 * len(some) + 2 :]))
        return bodies

    def _around_required(self, symbols: list[tuple[Symbol, ...]]) -> list[Symbol]:
        """Members with the first required one as the one that needs no comma before it."""
        first = self.is_required.index(True)
        body: list[Symbol] = [Times((*member, self.comma), 0, 1) for member in symbols[:first]]
        body.extend(symbols[first])
        for member, is_required in zip(
            symbols[first + 1 :], self.is_required[first + 1 :], strict=True
        ):
            if is_required:
                body.extend((self.comma, *member))
            else:
                body.append(Times((self.comma, *member), 0, 1))
        return body

    def _write_counted(self, rule: Rule, opening: Symbol, closing: Symbol) -> None:
        """Rules that remember how many members there are, up to the number that matters."""
        objects = self.objects
        if objects.some:
            raise GrammarError("counting properties next to a condition on some of them")
        further = self._further()
        cap = objects.low if objects.high is None else objects.high
        if (len(self.members) + 1) * (cap + 1) > limits.MAX_COUNTED_STATES:
            raise GrammarError("counting this many properties is too costly")
        if further is not None and objects.low - len(self.members) > 1:
            # Two further keys may be spelled alike, and readers keep only one of them.
            raise GrammarError("minProperties above 1 needs names in properties")
        states: dict[tuple[int, int], RuleRef] = {}
        symbols = [self._member(name, formula) for name, formula in self.members]

        def state(index: int, count: int) -> RuleRef:
            """What may follow when `count` members stand and `index` is next."""
            known = states.get((index, count))
            if known is not None:
                return known
            reference, followers = self.writer.rules.new()
            states[index, count] = reference
            if index == len(symbols):
                missing = max(objects.low - count, 0)
                room = None if objects.high is None else objects.high - count
                if missing <= 1 and further is not None and room != 0:
                    followers.add(Times((self.comma, further), missing, room))
                elif missing == 0:
                    followers.add()
                return reference
            if not self.is_required[index]:
                followers.add(state(index + 1, count))
            more = count + 1 if objects.high is not None else min(count + 1, objects.low)
            if objects.high is None or more <= objects.high:
                followers.add(self.comma, *symbols[index], state(index + 1, more))
            return reference

        for index, symbol in enumerate(symbols):
            if objects.high != 0:
                first = min(1, cap) if objects.high is None else 1
                rule.add(opening, *symbol, state(index + 1, first), closing)
            if self.is_required[index]:
                return
        if further is not None and objects.high != 0 and objects.low <= 1:
            room = None if objects.high is None else objects.high - 1
            tail = (Times((self.comma, further), 0, room),) if room != 0 else ()
            rule.add(opening, further, *tail, closing)
        if objects.low == 0:
            rule.add(self.writer.marks.empty_object)

    def _member(self, name: str, formula: Formula) -> tuple[Symbol, ...]:
        """name: value."""
        key = self.writer.rules.terminal(json_string_literal(name))
        return key, self.writer.marks.colon, self.writer.symbol(formula)

    def _further(self) -> RuleRef | None:
        """A member with a key that has no name in the schema."""
        if not self.objects.rest:
            return None
        reference, rule = self.writer.rules.new()
        for keys, formula in self.objects.rest:
            key = self.writer.string(both((keys, self.others)))
            if key is not None:
                rule.add(key, self.writer.marks.colon, self.writer.symbol(formula))
        return reference if rule.alternatives else None

    def _some(self, keys: Regex, formula: Formula) -> RuleRef:
        """A member that meets a condition which some further member has to meet."""
        reference, rule = self.writer.rules.new()
        for others, allowed in self.objects.rest:
            key = self.writer.string(both((keys, others, self.others)))
            if key is not None:
                wanted = conjunction((allowed, formula))
                rule.add(key, self.writer.marks.colon, self.writer.symbol(wanted))
        return reference
