"""ECMA-262 regular expressions, as `pattern` and `patternProperties` use them, to Regex.

The result describes the whole strings in which the expression finds a match. What cannot be had
exactly (back references, word boundaries, anchors and look-around in the middle) is refused.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..matcher import GrammarError
from . import charsets
from .charsets import Charset
from .limits import MAX_REGEX_CHARACTERS, MAX_REGEX_DEPTH, MAX_REPEATS
from .regex_ast import ALL, EMPTY, Regex, alt, both, chars, inverse, repeat, seq, words

_ESCAPED_SETS = {
    "d": charsets.DIGITS,
    "w": charsets.WORD,
    "s": charsets.SPACE,
    "D": charsets.inverse(charsets.DIGITS),
    "W": charsets.inverse(charsets.WORD),
    "S": charsets.inverse(charsets.SPACE),
}
_CONTROLS = {"t": 9, "n": 10, "v": 11, "f": 12, "r": 13, "0": 0}
_DOT = charsets.inverse(charsets.LINE_ENDS)


def parse_pattern(source: str, *, own: bool = False) -> Regex:
    """The strings in which the pattern is found. Raises GrammarError.

    own: the pattern is ours, not a user's, and may be long.
    """
    if not own and len(source) > MAX_REGEX_CHARACTERS:
        raise GrammarError(
            f"regular expression has {len(source)} characters, at most {MAX_REGEX_CHARACTERS}"
        )
    parser = _Parser(source)
    branches = parser.alternatives()
    if parser.position < len(source):
        raise parser.error("unmatched )")
    return alt(branch.as_found() for branch in branches)


@dataclass(frozen=True, slots=True)
class _Branch:
    """One way to match: regex, the ends it is tied to, and what is asserted at its start."""

    regex: Regex
    starts: bool = False
    ends: bool = False
    ahead: tuple[Regex, ...] = ()  # what all text from the start on must be in

    def as_found(self) -> Regex:
        tail = EMPTY if self.ends else ALL
        here = both([seq([self.regex, tail]), *self.ahead])
        return here if self.starts else seq([ALL, here])


class _Parser:
    def __init__(self, source: str) -> None:
        self.source = source
        self.position = 0
        self.depth = 0

    def error(self, reason: str) -> GrammarError:
        return GrammarError(
            f"regular expression {self.source!r}: {reason} (character {self.position})"
        )

    def peek(self, text: str) -> bool:
        return self.source.startswith(text, self.position)

    def take(self, text: str) -> bool:
        if not self.peek(text):
            return False
        self.position += len(text)
        return True

    def next(self) -> str:
        if self.position >= len(self.source):
            raise self.error("ends too early")
        self.position += 1
        return self.source[self.position - 1]

    def alternatives(self) -> list[_Branch]:
        branches = self.sequence()
        while self.take("|"):
            branches = branches + self.sequence()
        return branches

    def sequence(self) -> list[_Branch]:
        """Branches of one alternative: more than one only if anchors differ between them."""
        branches = [_Branch(EMPTY)]
        while self.position < len(self.source) and self.source[self.position] not in "|)":
            following = self.term()
            branches = [self._joined(a, b) for a in branches for b in following]
            if len(branches) > 64:
                raise self.error("too many anchored alternatives")
        return branches

    def _joined(self, left: _Branch, right: _Branch) -> _Branch:
        if left.ends and right != _Branch(EMPTY, ends=True):
            raise self.error("text after $ cannot be enforced")
        if (right.starts or right.ahead) and left.regex != EMPTY:
            raise self.error("^ or look-ahead after other text cannot be enforced")
        return _Branch(
            seq([left.regex, right.regex]),
            left.starts or right.starts,
            left.ends or right.ends,
            left.ahead + right.ahead,
        )

    def term(self) -> list[_Branch]:
        if self.take("^"):
            return [_Branch(EMPTY, starts=True)]
        if self.take("$"):
            return [_Branch(EMPTY, ends=True)]
        if self.peek("(?=") or self.peek("(?!"):
            return [_Branch(EMPTY, ahead=(self.look_ahead(),))]
        if self.peek("("):
            return self.quantified(self.group())
        return self.quantified([_Branch(self.atom())])

    def look_ahead(self) -> Regex:
        self.position += 2
        negative = self.next() == "!"
        asserted = []
        for branch in self._until_closed():
            if branch.starts or branch.ahead:
                raise self.error("an anchor within look-ahead cannot be enforced")
            asserted.append(seq([branch.regex, EMPTY if branch.ends else ALL]))
        return inverse(alt(asserted)) if negative else alt(asserted)

    def group(self) -> list[_Branch]:
        self.position += 1
        if self.take("?"):
            if self.take("<"):
                if self.peek("=") or self.peek("!"):
                    raise self.error("look-behind cannot be enforced")
                while self.next() != ">":
                    pass
            elif not self.take(":"):
                raise self.error("unknown group")
        branches = self._until_closed()
        if any(branch.starts or branch.ends or branch.ahead for branch in branches):
            return branches
        return [_Branch(alt(branch.regex for branch in branches))]

    def _until_closed(self) -> list[_Branch]:
        self.depth += 1
        if self.depth > MAX_REGEX_DEPTH:
            raise self.error(f"groups are nested more than {MAX_REGEX_DEPTH} deep")
        branches = self.alternatives()
        if not self.take(")"):
            raise self.error("missing )")
        self.depth -= 1
        return branches

    def quantified(self, branches: list[_Branch]) -> list[_Branch]:
        counts = self.quantifier()
        if counts is None:
            return branches
        self.take("?")  # lazy: another match, the same strings
        if self.position < len(self.source) and self.source[self.position] in "*+?":
            raise self.error("nothing to repeat")
        if any(branch.starts or branch.ends or branch.ahead for branch in branches):
            raise self.error("a repeated anchor cannot be enforced")
        return [_Branch(repeat(alt(branch.regex for branch in branches), *counts))]

    def quantifier(self) -> tuple[int, int | None] | None:
        for sign, counts in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self.take(sign):
                return counts
        if not self.peek("{"):
            return None
        start = self.position
        self.position += 1
        low = self.number()
        high: int | None = low
        if self.take(","):
            high = self.number() if not self.peek("}") else None
        if low is None or not self.take("}"):
            self.position = start
            raise self.error("{ must begin a repetition such as {2,3} or be escaped")
        if max(low, high or 0) > MAX_REPEATS:
            raise self.error(f"repetition above {MAX_REPEATS}")
        if high is not None and high < low:
            raise self.error("repetition whose end is below its start")
        return low, high

    def number(self) -> int | None:
        start = self.position
        while self.position < len(self.source) and self.source[self.position] in "0123456789":
            self.position += 1
        return int(self.source[start : self.position]) if self.position > start else None

    def atom(self) -> Regex:
        char = self.next()
        if char == ".":
            return chars(_DOT)
        if char == "[":
            return chars(self.char_class())
        if char == "\\":
            return self._one(self.escape(in_class=False))
        if char in "*+?":
            raise self.error("nothing to repeat")
        if char == "{":
            raise self.error("{ must begin a repetition such as {2,3} or be escaped")
        return words((char,))

    def _one(self, found: int | Charset) -> Regex:
        return words((chr(found),)) if isinstance(found, int) else chars(found)

    def char_class(self) -> Charset:
        negative = self.take("^")
        ranges: list[tuple[int, int]] = []
        while not self.take("]"):
            low = self.class_atom()
            if not self.peek("-") or self.peek("-]") or not isinstance(low, int):
                ranges.extend(((low, low),) if isinstance(low, int) else low)
                continue
            self.position += 1
            high = self.class_atom()
            if not isinstance(high, int):
                ranges.extend(((low, low), (0x2D, 0x2D), *high))
            elif high < low:
                raise self.error("character range whose end is below its start")
            else:
                ranges.append((low, high))
        charset = charsets.union(ranges)
        return charsets.inverse(charset) if negative else charset

    def class_atom(self) -> int | Charset:
        char = self.next()
        return self.escape(in_class=True) if char == "\\" else ord(char)

    def escape(self, in_class: bool) -> int | Charset:
        char = self.next()
        if char in _ESCAPED_SETS:
            return _ESCAPED_SETS[char]
        if char == "0" and self.position < len(self.source) and self._digit():
            raise self.error("octal escapes are not supported")
        if char in _CONTROLS:
            return _CONTROLS[char]
        if char in "pP":
            return self.category(negative=char == "P")
        if char == "x":
            return self.hexadecimal(2)
        if char == "u":
            return self.unicode_escape()
        if char == "c":
            letter = self.next()
            if not (letter.isascii() and letter.isalpha()):
                raise self.error("unknown control character")
            return ord(letter) % 32
        if char == "b" and in_class:
            return 8
        if char.isalnum() and char.isascii():
            raise self.error(f"\\{char} cannot be enforced")
        return ord(char)

    def _digit(self) -> bool:
        return self.source[self.position] in "0123456789"

    def hexadecimal(self, count: int) -> int:
        digits = self.source[self.position : self.position + count]
        if len(digits) < count or any(c not in "0123456789abcdefABCDEF" for c in digits):
            raise self.error(f"expected {count} hexadecimal digits")
        self.position += count
        return int(digits, 16)

    def unicode_escape(self) -> int:
        if self.take("{"):
            end = self.source.find("}", self.position)
            digits = self.source[self.position : end] if end > 0 else ""
            if (
                not digits
                or len(digits) > 6
                or any(c not in "0123456789abcdefABCDEF" for c in digits)
            ):
                raise self.error("expected a code point in \\u{}")
            self.position = end + 1
            point = int(digits, 16)
        else:
            point = self.hexadecimal(4)
            if 0xD800 <= point < 0xDC00 and self.take("\\u"):
                point = 0x10000 + ((point - 0xD800) << 10) + (self.hexadecimal(4) - 0xDC00)
        if point > charsets.MAX_CODE_POINT or 0xD800 <= point <= 0xDFFF:
            raise self.error("not a Unicode character")
        return point

    def category(self, negative: bool) -> Charset:
        end = self.source.find("}", self.position)
        if not self.take("{") or end < 0:
            raise self.error("expected a Unicode category in {}")
        name = self.source[self.position : end].removeprefix("General_Category=")
        self.position = end + 1
        short = {"Letter": "L", "Number": "N", "Decimal_Number": "Nd", "digit": "Nd"}.get(
            name, name
        )
        charset = charsets.of_category(short)
        if charset is None:
            raise self.error(f"unknown Unicode category {name!r}")
        return charsets.inverse(charset) if negative else charset
