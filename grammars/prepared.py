"""What a checked spec has become: one grammar that one engine enforces exactly."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from .spec import JsonWhitespace


class GrammarEngine(Enum):
    """Who enforces a grammar."""

    LLGUIDANCE = "llguidance"
    XGRAMMAR = "xgrammar"


class PreparedForm(Enum):
    """How PreparedGrammar.text is to be read by its engine."""

    JSON_SCHEMA = "json_schema"  # a rewritten schema, all of whose keywords the engine enforces
    REGEX = "regex"
    LARK = "lark"
    EBNF = "ebnf"
    STRUCTURAL_TAG = "structural_tag"
    THINKING = "thinking"  # compiled by thinking.compile_thinking, what is in it by an engine


@dataclass(frozen=True, slots=True)
class PreparedGrammar:
    """The result of checking and rewriting a GrammarSpec; compiling it is the engine's part.

    dropped: JSON pointers of keywords left out because the spec allowed it.
    """

    engine: GrammarEngine
    form: PreparedForm
    text: str
    whitespace: JsonWhitespace
    dropped: tuple[str, ...] = ()
