"""embedded: a Lark grammar as rules inside another one, its names kept apart by a prefix."""

from __future__ import annotations

import json
import re

from .matcher import GrammarError

_TOKEN = re.compile(
    r"""
    (?P<skip> //[^\n]* | "(?:\\.|[^"\\\n])*"i? | /(?:\\.|[^/\\\n])+/[imslux]* | <[^\s<>]+> | ~\d+ )
    | (?P<directive> %[a-z]+ )
    | (?P<name> [A-Za-z_][A-Za-z0-9_]* )
    """,
    re.VERBOSE,
)
_DEFINITION = re.compile(
    r"^[ \t]*([A-Za-z_][A-Za-z0-9_]*)[ \t]*(\[[^\]\n]*\])?[ \t]*:", re.MULTILINE
)
_DECODER = json.JSONDecoder()


def embedded(lark: str, prefix: str) -> str:
    """Return lark with prefix in front of every rule and terminal: its start is prefix + "start".

    prefix is lower-case; terminals get it in upper case. Raises GrammarError for directives that
    hold for a whole grammar, and for a grammar without a start.
    """
    names = {found[1] for found in _DEFINITION.finditer(lark)}
    if "start" not in names:
        raise GrammarError("the grammar has no rule `start`")
    written: list[str] = []
    place = 0
    while token := _TOKEN.search(lark, place):
        written.append(lark[place : token.start()])
        place = token.end()
        if token["directive"] == "%if":  # the guard of a rule with a parameter
            written.append(token[0])
        elif token["directive"]:
            end = _directive_end(lark, token)
            is_option = token[0] == "%llguidance"
            written.append("" if is_option else lark[token.start() : end])
            place = end
        elif token["name"] in names:
            name = token["name"]
            written.append((prefix.upper() if name.isupper() else prefix) + name)
            place = _attributes_end(lark, token, written)
        else:
            written.append(token[0])
    return "".join([*written, lark[place:]])


def _directive_end(lark: str, token: re.Match[str]) -> int:
    """Where a directive's JSON ends."""
    if token[0] not in ("%json", "%regex", "%llguidance"):
        raise GrammarError(f"{token[0]} cannot stand in an embedded grammar")
    start = token.end()
    while start < len(lark) and lark[start].isspace():
        start += 1
    try:
        return _DECODER.raw_decode(lark, start)[1]
    except ValueError as error:
        raise GrammarError(f"{token[0]} is not followed by JSON: {error}") from None


def _attributes_end(lark: str, token: re.Match[str], written: list[str]) -> int:
    """Copy a definition's attributes, [lazy] and the like, as they are; return where they end."""
    definition = _DEFINITION.match(lark, lark.rfind("\n", 0, token.start()) + 1)
    if definition is None or definition.start(1) != token.start() or definition[2] is None:
        return token.end()
    written.append(lark[token.end() : definition.end(2)])
    return definition.end(2)
