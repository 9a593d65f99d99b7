"""The way from the text of a schema to the text of a grammar."""

from __future__ import annotations

from dataclasses import dataclass

from ..matcher import GrammarError
from ..spec import JsonWhitespace
from . import limits
from .documents import Document
from .errors import UnsupportedKeyword
from .formulas import Formula
from .places import formula_at
from .schema_text import JsonValue, parse_json
from .translation import Translation
from .work import limited
from .writer import Writer

_MAX_DROPPED = 100


@dataclass(frozen=True, slots=True)
class CompiledSchema:
    """A Lark grammar for llguidance; dropped: JSON pointers of keywords that it leaves out."""

    lark: str
    dropped: tuple[str, ...]


def compile_schema(
    text: str, whitespace: JsonWhitespace, *, drop_unsupported: bool = False
) -> CompiledSchema:
    """A grammar of exactly the instances of the schema, in the order of its keys.

    drop_unsupported: what cannot be enforced is left out, and named, instead of refused.
    Raises GrammarError.
    """
    return compile_parsed(parse_json(text), whitespace, drop_unsupported=drop_unsupported)


def compile_parsed(
    schema: JsonValue, whitespace: JsonWhitespace, *, drop_unsupported: bool = False
) -> CompiledSchema:
    """As compile_schema, for a schema that is already a value."""
    dropped: dict[tuple[str, str], None] = {}
    while True:
        try:
            with limited(limits.MAX_STEPS):
                lark = _grammar(schema, whitespace, dropped)
        except UnsupportedKeyword as error:
            key = (error.pointer or "", error.keyword or "")
            if not drop_unsupported or key in dropped or len(dropped) >= _MAX_DROPPED:
                raise
            dropped[key] = None
        except RecursionError:
            raise GrammarError(
                "the schema is too deeply nested once its parts are combined"
            ) from None
        else:
            return CompiledSchema(lark, tuple(f"{pointer}/{name}" for pointer, name in dropped))


def _grammar(
    schema: JsonValue, whitespace: JsonWhitespace, dropped: dict[tuple[str, str], None]
) -> str:
    document = Document(schema)
    root: Formula = formula_at(document, document.at(""))
    text = Writer(Translation(document, dropped.keys()), whitespace).grammar(root)
    if text is None:
        raise GrammarError("no finite JSON text satisfies the schema", pointer="")
    if len(text) > limits.MAX_GRAMMAR_CHARACTERS:
        raise GrammarError("the schema is too large once its parts are combined")
    return text
