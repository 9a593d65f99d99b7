"""closing_hints: texts that a grammar may wait for before it can end.

An open pattern (.*x.y.*) allows nearly everything at every place, so that no mask tells what is
missing. The grammar's own text does: examples of its patterns, and the literals in them.
"""

from __future__ import annotations

import re

from .pattern_examples import example_of
from .prepared import PreparedForm, PreparedGrammar

MAX_HINTS = 40
# Reading a whole grammar of a thousand patterns costs more than it tells.
MAX_CHARACTERS_READ = 40_000
# Where a pattern waits for something that no word holds: digits, an address, a capital.
USUAL_HINTS = ("000", "a@a.aa", "http://a", ".", "-", "@", "/", ":", " ", "_", "A")
_PUNCTUATION = frozenset("{}[]:,")  # of JSON, with room for whitespace
_MERE_LENGTH = re.compile(r'"?(.)\1{3,}"?')  # for which long words are quicker
_SCHEMA_PATTERN = re.compile(r'"pattern"\s*:\s*"((?:[^"\\]|\\.)*)"')
_LARK_PATTERN = re.compile(r"/((?:[^/\\\n]|\\.)+)/")
_HAS_CHOICE = re.compile(r"[*+\[{|.]")
_NUMBERED = re.compile(r"\\x\{([0-9a-fA-F]{1,6})\}")
_CLASSES = re.compile(r"\[(?:[^\]\\]|\\.)*\]|\\+[dDwWsSbB]|\{[\d,]*\}|\(\?:")
# How a JSON string's escapes look in a terminal: no pattern waits for them.
_JSON_ESCAPES = re.compile(r"\\\\\(\?:\[\"\\\\bfnrt\]\|u00\(\?:[^)]*\)\)")
_LITERAL = re.compile(r"(?:\w|[@:/<>=#&%!;,. -]|\\+[.^$*+?()/-])+")


def closing_hints(prepared: PreparedGrammar) -> list[str]:
    """Texts that the patterns of this grammar may wait for, beside USUAL_HINTS."""
    text = prepared.text[:MAX_CHARACTERS_READ]
    if prepared.form is PreparedForm.JSON_SCHEMA:
        patterns = _SCHEMA_PATTERN.findall(text)
    elif prepared.form is PreparedForm.LARK:
        patterns = _LARK_PATTERN.findall(text)
    else:
        patterns = [text]
    found: dict[str, None] = {}
    unread: list[str] = []
    for pattern in filter(_HAS_CHOICE.search, dict.fromkeys(patterns)):
        example = example_of(pattern)
        if example is None:
            unread.append(pattern)
        elif example not in _PUNCTUATION and not _MERE_LENGTH.fullmatch(example):
            # Within a JSON string: the quotes around it are there already, or come by themselves.
            found.setdefault(example.removeprefix('"').removesuffix('"'))
    for pattern in unread:
        pattern = _JSON_ESCAPES.sub(" ", pattern)
        plain = _NUMBERED.sub(lambda match: _character(match.group(1)), _CLASSES.sub(" ", pattern))
        for literal in _LITERAL.findall(plain):
            found.setdefault(re.sub(r"\\+", "", literal).strip())
    found.pop("", None)
    return list(found)[:MAX_HINTS]


def _character(digits: str) -> str:
    code = int(digits, 16)
    return chr(code) if code < 0xD800 else " "
