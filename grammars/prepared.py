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
class Trial:
    """What following a grammar for a while has shown, for the tokens of one model.

    closing: a short whole output as token ids, None if none was found. hints: see closing_hints.
    """

    closing: tuple[int, ...] | None
    hints: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PreparedGrammar:
    """The result of checking and rewriting a GrammarSpec; compiling it is the engine's part.

    dropped: JSON pointers of keywords left out because the spec allowed it. trial: once it was
    tried out.
    """

    engine: GrammarEngine
    form: PreparedForm
    text: str
    whitespace: JsonWhitespace
    dropped: tuple[str, ...] = ()
    trial: Trial | None = None
