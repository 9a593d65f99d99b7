"""prepare: check what a request wants its output to follow, and choose how it is enforced.

Everything that can be told without a model's tokens is told here, so that a request is refused
before it waits for anything. What is returned is enforced exactly by the engine it names.
"""

from __future__ import annotations

import json
import re

from .gbnf import lark_of_gbnf
from .json_schema.compiler import compile_schema
from .json_schema.regex_lark import literal
from .json_schema.schema_text import parse_json
from .matcher import GrammarError
from .prepared import GrammarEngine, PreparedForm, PreparedGrammar
from .spec import GrammarKind, GrammarSpec
from .structural_tag import NO_FORCING, prepare_structural_tag
from .thinking import prepare_thinking

MAX_GRAMMAR_BYTES = 256 * 1024
MAX_REGEX_CHARACTERS = 8_192  # of a regex that is the whole grammar
MAX_CHOICES = 50_000
MAX_NESTING = 200  # brackets within brackets in a grammar or a regex

_ENDS_IN_ESCAPE = re.compile(r"(?<!\\)(?:\\\\)*\\\Z")

_FORMS = {
    GrammarKind.REGEX: PreparedForm.REGEX,
    GrammarKind.EBNF: PreparedForm.LARK,
    GrammarKind.LARK: PreparedForm.LARK,
}


def prepare(spec: GrammarSpec) -> PreparedGrammar:
    """Check spec and rewrite it to what one engine enforces exactly. Raises GrammarError."""
    match spec.kind:
        case GrammarKind.JSON_SCHEMA:
            return _schema(spec, spec.text)
        case GrammarKind.JSON_OBJECT:
            return _schema(spec, '{"type":"object"}')
        case GrammarKind.CHOICE:
            return _lark(spec, _choice(spec.text))
        case GrammarKind.STRUCTURAL_TAG:
            return prepare_structural_tag(spec, prepare)
        case GrammarKind.THINKING:
            return prepare_thinking(spec, prepare)
        case _:
            _check_text(spec)
            text = spec.text
            if spec.kind is GrammarKind.EBNF:
                text = lark_of_gbnf(text)
            if spec.kind is not GrammarKind.REGEX:
                text = f"{text}\n{NO_FORCING}\n"  # last, where it overrides what text says
            return PreparedGrammar(
                GrammarEngine.LLGUIDANCE, _FORMS[spec.kind], text, spec.whitespace
            )


def _schema(spec: GrammarSpec, text: str) -> PreparedGrammar:
    compiled = compile_schema(text, spec.whitespace, drop_unsupported=spec.drop_unsupported)
    return _lark(spec, compiled.lark, compiled.dropped)


def _lark(spec: GrammarSpec, text: str, dropped: tuple[str, ...] = ()) -> PreparedGrammar:
    return PreparedGrammar(
        GrammarEngine.LLGUIDANCE, PreparedForm.LARK, text, spec.whitespace, dropped
    )


def _choice(text: str) -> str:
    """A grammar of exactly the listed strings."""
    choices = parse_json(text, "choice")
    if not isinstance(choices, list) or not choices:
        raise GrammarError("choice must be a list of strings, and not empty")
    if len(choices) > MAX_CHOICES:
        raise GrammarError(f"choice has {len(choices)} strings, at most {MAX_CHOICES}")
    options = []
    for choice in choices:
        if not isinstance(choice, str):
            raise GrammarError(f"choice holds {json.dumps(choice, default=str)}, not a string")
        if not choice:
            raise GrammarError("choice holds an empty string: no output can be one")
        options.append(literal(choice))
    return f"start: /{'|'.join(dict.fromkeys(options))}/\n"


def _check_text(spec: GrammarSpec) -> None:
    name = spec.kind.value
    size = len(spec.text.encode("utf-8", "surrogatepass"))
    if not spec.text.strip():
        raise GrammarError(f"{name} is empty")
    if size > MAX_GRAMMAR_BYTES:
        raise GrammarError(f"{name} has {size} bytes, at most {MAX_GRAMMAR_BYTES}")
    if spec.kind is GrammarKind.REGEX and len(spec.text) > MAX_REGEX_CHARACTERS:
        raise GrammarError(f"regex has {len(spec.text)} characters, at most {MAX_REGEX_CHARACTERS}")
    if spec.kind is GrammarKind.REGEX and _ENDS_IN_ESCAPE.search(spec.text):
        raise GrammarError("regex ends with a backslash that escapes nothing")
    if any("\ud800" <= char <= "\udfff" for char in spec.text):
        raise GrammarError(f"{name} holds a lone surrogate")
    depth = deepest = 0
    for char in spec.text:
        depth += (char in "([{") - (char in ")]}")
        deepest = max(deepest, depth)
    if deepest > MAX_NESTING:
        raise GrammarError(f"{name} is nested more than {MAX_NESTING} deep")
