"""The way from the text of a schema to the text of a grammar."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from ..matcher import GrammarError
from ..spec import JsonWhitespace
from . import limits
from .contradictions import contradiction
from .documents import Document
from .errors import UnsupportedKeyword
from .formulas import Formula
from .places import formula_at
from .schema_text import JsonValue, parse_json
from .translation import Translation
from .work import limited
from .writer import Writer

_MAX_DROPPED = 100
_MAX_TRIED = 16  # places that are tried one by one for which of them is at fault

Dropped: TypeAlias = dict[tuple[str, str], None]  # (pointer of the place, keyword), in order


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
    dropped: Dropped = {}
    while True:
        try:
            with limited(limits.MAX_STEPS):
                lark = _grammar(schema, whitespace, dropped)
        except UnsupportedKeyword as error:
            keyword = error.keyword or ""
            found = [error.pointer] if error.pointer is not None else []
            if not found:
                found = _places_of(keyword, schema, whitespace, dropped)
            if not found:
                raise
            if not drop_unsupported or len(dropped) + len(found) > _MAX_DROPPED:
                raise UnsupportedKeyword(error.reason, pointer=found[0], keyword=keyword) from None
            if (found[0], keyword) in dropped:
                raise
            dropped.update(((pointer, keyword), None) for pointer in found)
        except RecursionError:
            raise GrammarError(
                "the schema is too deeply nested once its parts are combined"
            ) from None
        else:
            return CompiledSchema(lark, tuple(f"{pointer}/{name}" for pointer, name in dropped))


def _places_of(
    keyword: str, schema: JsonValue, whitespace: JsonWhitespace, dropped: Dropped
) -> list[str]:
    """Where keyword stands and cannot be enforced, by pointers, if what failed did not know where.

    Keywords of several places may have become one rule. A place is at fault if the others that are
    not yet known to be innocent are left out, and it still fails.
    """
    places = Document(schema).pointers_with(keyword)
    blamed = [pointer for pointer in places if (pointer, keyword) not in dropped]
    if not 1 < len(blamed) <= _MAX_TRIED:
        return blamed
    for pointer in tuple(blamed):
        others = [one for one in blamed if one != pointer]
        without = {**dropped, **{(one, keyword): None for one in others}}
        try:
            with limited(limits.MAX_STEPS):
                _grammar(schema, whitespace, without)
        except UnsupportedKeyword as error:
            if error.keyword == keyword:
                continue
        except (GrammarError, RecursionError):
            pass
        blamed = others
    return blamed


def _grammar(schema: JsonValue, whitespace: JsonWhitespace, dropped: Dropped) -> str:
    document = Document(schema)
    root: Formula = formula_at(document, document.at(""))
    text = Writer(Translation(document, dropped.keys()), whitespace).grammar(root)
    if text is None:
        why, pointer = contradiction(document) or ("", "")
        reason = "no finite JSON text satisfies the schema" + (why and f"; {why},")
        raise GrammarError(reason, pointer=pointer)
    if len(text) > limits.MAX_GRAMMAR_CHARACTERS:
        raise GrammarError("the schema is too large once its parts are combined")
    return text
