"""What a request asks its output to follow, as the user wrote it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from enum import Enum


class GrammarKind(Enum):
    """How GrammarSpec.text is to be read."""

    JSON_SCHEMA = "json_schema"
    JSON_OBJECT = "json_object"  # text is empty: any JSON object
    REGEX = "regex"
    EBNF = "ebnf"  # GBNF as llama.cpp and xgrammar read it, entry rule `root`
    LARK = "lark"  # entry rule `start`
    CHOICE = "choice"  # text is a JSON array of strings
    STRUCTURAL_TAG = "structural_tag"  # text is the JSON object of the request
    THINKING = "thinking"  # made by thinking.thinking_spec around another spec


class JsonWhitespace(Enum):
    """Where whitespace may stand between the tokens of a JSON text."""

    COMPACT = "compact"  # nowhere
    SPACED = "spaced"  # one space after each comma and colon, nowhere else
    BOUNDED = "bounded"  # up to MAX_WHITESPACE characters anywhere between tokens
    UNBOUNDED = "unbounded"  # as JSON allows


MAX_WHITESPACE = 8  # characters in a row; enough to indent, too few to fill an answer with


@dataclass(frozen=True, slots=True)
class GrammarSpec:
    """One grammar. text is kept exactly as sent, so that the order of a schema's keys survives.

    drop_unsupported: the request allowed keywords that cannot be enforced to be left out; what was
    left out is told in Grammar.dropped.
    """

    kind: GrammarKind
    text: str
    whitespace: JsonWhitespace = JsonWhitespace.BOUNDED
    drop_unsupported: bool = False
    key: str = field(init=False, compare=False, default="")  # equal specs have equal keys

    def __post_init__(self) -> None:
        parts = (self.kind.value, self.whitespace.value, str(self.drop_unsupported), self.text)
        digest = hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()
        object.__setattr__(self, "key", digest)
