"""Schemas as requests send them, matched byte by byte."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from support.byte_vocabulary import byte_vocabulary, takes_text

from runtime.grammars.compile import compile_grammar
from runtime.grammars.matcher import Grammar
from runtime.grammars.prepare import prepare
from runtime.grammars.spec import GrammarKind, GrammarSpec, JsonWhitespace
from runtime.grammars.vocabulary import Vocabulary


@cache
def vocabulary() -> Vocabulary:
    return byte_vocabulary()


def schema_grammar(
    schema: Any,
    whitespace: JsonWhitespace = JsonWhitespace.BOUNDED,
    *,
    drop_unsupported: bool = False,
) -> Grammar:
    """schema: its text, or a value to be written as text."""
    text = schema if isinstance(schema, str) else json.dumps(schema, ensure_ascii=False)
    spec = GrammarSpec(GrammarKind.JSON_SCHEMA, text, whitespace, drop_unsupported)
    return compile_grammar(prepare(spec), vocabulary())


def accepted(grammar: Grammar, *texts: str) -> list[str]:
    """Those of the texts that are whole texts of the grammar."""
    return [text for text in texts if takes_text(grammar, text)]
