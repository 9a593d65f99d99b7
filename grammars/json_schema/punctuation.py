"""The marks of JSON with the whitespace that a policy allows around them.

Whitespace is part of the marks rather than skipped between terminals: that bounds it exactly, and
leaves none before the first and after the last character of a text.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..spec import MAX_WHITESPACE, JsonWhitespace
from .rules import Rules, Terminal


@dataclass(frozen=True, slots=True)
class Punctuation:
    comma: Terminal
    colon: Terminal
    open_object: Terminal
    close_object: Terminal
    empty_object: Terminal
    open_array: Terminal
    close_array: Terminal
    empty_array: Terminal


def punctuation(rules: Rules, whitespace: JsonWhitespace) -> Punctuation:
    space = {
        JsonWhitespace.BOUNDED: rf"[ \n\r\t]{{0,{MAX_WHITESPACE}}}",
        JsonWhitespace.UNBOUNDED: r"[ \n\r\t]*",
    }.get(whitespace, "")
    after = " " if whitespace is JsonWhitespace.SPACED else space

    def mark(expression: str) -> Terminal:
        return rules.terminal(f"/{expression}/")

    return Punctuation(
        comma=mark(f"{space},{after}"),
        colon=mark(f"{space}:{after}"),
        open_object=mark(rf"\{{{space}"),
        close_object=mark(rf"{space}\}}"),
        empty_object=mark(rf"\{{{space}\}}"),
        open_array=mark(rf"\[{space}"),
        close_array=mark(rf"{space}\]"),
        empty_array=mark(rf"\[{space}\]"),
    )
