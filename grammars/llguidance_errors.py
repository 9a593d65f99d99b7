"""readable_error: what llguidance says of a grammar, in words for the user who sent it."""

from __future__ import annotations

import re

from .matcher import NO_TEXT

_DEAD_END = "NoExtension"  # the library's name for a place from which no token leads on
_REGEX_REASON = re.compile(r"^error: (.+)$", re.MULTILINE)
_OUR_LINE = re.compile(r"^at \d+\(\d+\): ")  # a place in what the user's text was rewritten to
_MOST_QUOTED = 200


def readable_error(text: str) -> str:
    """The library's message without the dump of its state that follows, and in plain words."""
    line = text.strip().partition("\n")[0].partition("<state>")[0].strip()
    if line.startswith(_DEAD_END):
        return NO_TEXT
    if reason := _REGEX_REASON.search(text):
        line = line.partition(" (in regex)")[0]
        line = f"{_shortened(_OUR_LINE.sub('', line))}: {reason.group(1)}"
    return line or "the grammar cannot be enforced"


def _shortened(text: str) -> str:
    return text if len(text) <= _MOST_QUOTED else f"{text[:_MOST_QUOTED]}..."
