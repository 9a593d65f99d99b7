"""Regex to terminals of the grammar: the JSON strings whose value is in the language.

Each string has one spelling here: what must be escaped is, by the short form where there is one,
and nothing else. Hence a complement of spellings is the complement of values, an escaped spelling
cannot pass for another key, and lone surrogates cannot be written.
"""

from __future__ import annotations

import json
from functools import lru_cache

from . import charsets
from .charsets import Charset
from .regex_ast import ALL, Alt, And, Chars, Not, Nothing, Regex, Repeat, Seq, Words

_RAW: Charset = charsets.inverse(((0, 0x1F), (0x22, 0x22), (0x5C, 0x5C)))
_SHORT = {0x22: '"', 0x5C: "\\", 8: "b", 9: "t", 10: "n", 12: "f", 13: "r"}
_ESCAPED = (*range(0x20), 0x22, 0x5C)
_AS_JSON = {point: "\\" + _SHORT.get(point, f"u{point:04x}") for point in _ESCAPED}
_ANY_ESCAPE = r'\\(?:["\\bfnrt]|u00(?:0[0-7be]|1[0-9a-f]))'


def json_string_terminal(regex: Regex) -> str:
    """An expression for a terminal: the quoted JSON strings of the language."""
    if isinstance(regex, And):
        return "(" + " & ".join(json_string_terminal(part) for part in _positive(regex)) + ")"
    if isinstance(regex, Not):
        return f"({json_string_terminal(ALL)} & ~{json_string_terminal(regex.part)})"
    if isinstance(regex, Alt) and not regex.is_pure:
        return "(" + " | ".join(json_string_terminal(part) for part in regex.parts) + ")"
    if regex.is_pure:
        return f'/"{_pure(regex)}"/'
    return f'("\\"" {_impure(regex)} "\\"")'


def json_string_literal(text: str) -> str:
    """The one JSON string whose value is text, as a literal of the grammar."""
    spelled = json.dumps(f'"{text.translate(_AS_JSON)}"', ensure_ascii=False)
    return spelled.replace("\x7f", "\\u007f")  # no literal may hold it as it is


def _positive(regex: And) -> list[Regex]:
    """Parts of a conjunction, the first of which is no complement: ~ alone leaves JSON strings."""
    parts = sorted(regex.parts, key=lambda part: isinstance(part, Not))
    return [ALL, *parts] if isinstance(parts[0], Not) else parts


def _impure(regex: Regex) -> str:
    if regex.is_pure:
        return f"/{_pure(regex)}/"
    match regex:
        case And():
            return "(" + " & ".join(_impure(part) for part in _positive(regex)) + ")"
        case Not():
            return f"(/{_pure(ALL)}/ & ~{_impure(regex.part)})"
        case Alt():
            return "(" + " | ".join(_impure(part) for part in regex.parts) + ")"
        case Seq():
            return "(" + " ".join(_impure(part) for part in regex.parts) + ")"
        case Repeat():
            high = "" if regex.high is None else regex.high
            return f"({_impure(regex.part)}){{{regex.low},{high}}}"
        case _:
            raise AssertionError(f"not a compound: {regex}")


def _pure(regex: Regex) -> str:
    match regex:
        case Nothing():
            raise AssertionError("an empty language has no spelling")
        case Chars():
            return _one_char(regex.charset)
        case Words():
            options = [json_characters(word) for word in regex.words]
            return options[0] if len(options) == 1 else f"(?:{'|'.join(options)})"
        case Seq():
            return "".join(_pure(part) for part in regex.parts)
        case Alt():
            return f"(?:{'|'.join(_pure(part) for part in regex.parts)})"
        case Repeat():
            part = _pure(regex.part)
            is_one = isinstance(regex.part, Chars) and part[0] in "[("
            return f"{part if is_one else f'(?:{part})'}{_count(regex.low, regex.high)}"
        case _:
            raise AssertionError(f"not pure: {regex}")


def _count(low: int, high: int | None) -> str:
    if high is None:
        return {0: "*", 1: "+"}.get(low, f"{{{low},}}")
    return f"{{{low}}}" if low == high else f"{{{low},{high}}}"


@lru_cache(maxsize=1_000)
def _one_char(charset: Charset) -> str:
    raw = charsets.intersection(charset, _RAW)
    escaped = [point for point in _ESCAPED if charsets.contains(charset, point)]
    options = [regex_class(raw)] if raw else []
    if len(escaped) == len(_ESCAPED):
        options.append(_ANY_ESCAPE)
    else:
        options.extend(json_characters(chr(point)) for point in escaped)
    return options[0] if len(options) == 1 else f"(?:{'|'.join(options)})"


def regex_class(charset: Charset) -> str:
    if charset == _RAW:
        return r'[^"\\\x00-\x1f]'
    ranges = [
        regex_character(low) + (f"-{regex_character(high)}" if high > low else "")
        for low, high in charset
    ]
    return f"[{''.join(ranges)}]"


def json_characters(text: str) -> str:
    """The text as it stands in a JSON string, as a regular expression."""
    return text.translate(_IN_JSON)


def literal(text: str) -> str:
    """A regular expression for the text as it is, without any JSON escaping."""
    return text.translate(_IN_REGEX)


def regex_character(point: int) -> str:
    return chr(point).translate(_IN_REGEX)


def _spelled(point: int) -> str:
    char = chr(point)
    plain = char.isalnum() or char in "_ \"',:;=<>@%!"
    return char if plain else f"\\x{{{point:x}}}"


def _spelled_in_json(point: int) -> str:
    if point in _SHORT:
        return "\\\\" + _spelled(ord(_SHORT[point]))
    return f"\\\\u{point:04x}" if point < 0x20 else _spelled(point)


# Above ASCII only what ends a line or changes no look is spelled out.
_HIDDEN = (0x7F, *range(0x80, 0xA1), 0xAD, *range(0x2000, 0x2010), *range(0x2028, 0x2030), 0xFEFF)
_IN_REGEX = {point: _spelled(point) for point in (*range(0x80), *_HIDDEN)}
_IN_JSON = {point: _spelled_in_json(point) for point in (*range(0x80), *_HIDDEN)}
