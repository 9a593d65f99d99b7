"""example_of: a short text that a regular expression matches, as far as that is plain to see.

For the notation of the grammars that are written here; look-around, flags and the like are not
read. An intersection or a complement has no example of its own: that of its parts is a guess.
"""

from __future__ import annotations

from dataclasses import dataclass

MAX_CHARACTERS = 200  # of an example
_MAX_DEPTH = 60
_PREFERRED = "a0A bB1_-.@/:é一"  # the first of these that a class has stands for it
_CONTROLS = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v", "0": "\0"}
_SETS = {"d": "0", "w": "a", "s": " ", "D": "a", "W": " ", "S": "a"}


class _NotPlain(Exception):
    """Something that is not read here."""


def example_of(regex: str) -> str | None:
    """A shortest text for each choice and repeat that is in regex; None if it cannot be read."""
    reader = _Reader(regex)
    try:
        found = reader.choice(0)
    except (_NotPlain, IndexError, ValueError, OverflowError):
        return None
    return found if reader.place == len(regex) else None


@dataclass(slots=True)
class _Reader:
    text: str
    place: int = 0

    def choice(self, depth: int) -> str:
        """The shortest of the options, the first where several are."""
        if depth > _MAX_DEPTH:
            raise _NotPlain
        options = [self._sequence(depth)]
        while self._take("|"):
            options.append(self._sequence(depth))
        return min(options, key=len)

    def _sequence(self, depth: int) -> str:
        parts: list[str] = []
        while self.place < len(self.text) and self.text[self.place] not in "|)":
            part = self._item(depth)
            parts.append(part * self._times())
            if sum(map(len, parts)) > MAX_CHARACTERS:
                raise _NotPlain
        return "".join(parts)

    def _item(self, depth: int) -> str:
        char = self._next()
        if char == "(":
            if self._take("?") and not (self._take(":") or self._take("s:")):
                raise _NotPlain
            found = self.choice(depth + 1)
            if self._next() != ")":
                raise _NotPlain
            return found
        if char == "[":
            return self._char_class()
        if char == "\\":
            return self._escaped()[0]
        if char in "*+?{^$":
            raise _NotPlain
        return "a" if char == "." else char

    def _times(self) -> int:
        """How often the item before is to be written: as seldom as it may."""
        if self._take("*") or self._take("?"):
            times = 0
        elif self._take("+"):
            times = 1
        elif self._take("{"):
            end = self.text.index("}", self.place)
            times = int(self.text[self.place : end].partition(",")[0] or 0)
            self.place = end + 1
            if times > MAX_CHARACTERS:
                raise _NotPlain
        else:
            return 1
        self._take("?")
        return times

    def _char_class(self) -> str:
        is_negated = self._take("^")
        ranges: list[tuple[str, str]] = []
        while not self._take("]"):
            low, is_set = self._class_member()
            high = low
            if not is_set and self._take("-"):
                if self._take("]"):
                    ranges += [(low, low), ("-", "-")]
                    break
                high, _ = self._class_member()
            ranges.append((low, high))
        edges = [chr(ord(high) + 1) if is_negated else low for low, high in ranges]
        candidates: list[str] = [*_PREFERRED, *edges]
        for char in candidates:
            if any(low <= char <= high for low, high in ranges) != is_negated:
                return char
        raise _NotPlain

    def _class_member(self) -> tuple[str, bool]:
        char = self._next()
        return self._escaped() if char == "\\" else (char, False)

    def _escaped(self) -> tuple[str, bool]:
        """The character that an escape stands for, and whether it is one out of a set."""
        char = self._next()
        if char in _SETS:
            return _SETS[char], True
        if char == "x" and self._take("{"):
            end = self.text.index("}", self.place)
            digits = self.text[self.place : end]
            self.place = end + 1
            return chr(int(digits, 16)), False
        if char == "x":
            self.place += 2
            return chr(int(self.text[self.place - 2 : self.place], 16)), False
        if char in _CONTROLS:
            return _CONTROLS[char], False
        if char.isalnum():
            raise _NotPlain
        return char, False

    def _next(self) -> str:
        self.place += 1
        return self.text[self.place - 1]

    def _take(self, text: str) -> bool:
        found = self.text.startswith(text, self.place)
        self.place += len(text) if found else 0
        return found
