"""A Lark grammar inside another: names are kept apart, everything else stays."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.byte_vocabulary import byte_vocabulary, takes_text

from runtime.grammars.compile import compile_grammar
from runtime.grammars.lark_embedding import embedded
from runtime.grammars.matcher import GrammarError
from runtime.grammars.prepare import prepare
from runtime.grammars.spec import GrammarKind, GrammarSpec


def test_rules_and_terminals_are_renamed_but_not_texts_that_look_like_them() -> None:
    lark = (
        "%llguidance {}\n"
        "// about start\n"
        'start: item | "start" ITEM <start>\n'
        'item[lazy, capture="item"]: /item\\/start/ %json {"const": "item \\" start"}\n'
        "ITEM: /ITEM/ & ~other\n"
        "other: item{2,3}\n"
    )

    text = embedded(lark, "in_")

    assert text.splitlines()[1:] == [
        "// about start",
        'in_start: in_item | "start" IN_ITEM <start>',
        'in_item[lazy, capture="item"]: /item\\/start/ %json {"const": "item \\" start"}',
        "IN_ITEM: /ITEM/ & ~in_other",
        "in_other: in_item{2,3}",
    ]


@pytest.mark.parametrize(
    ("lark", "shown"),
    [("item: /x/", "start"), ("start: /x/\n%ignore /y/", "%ignore"), ("start: %json x", "JSON")],
)
def test_what_cannot_be_embedded_is_refused(lark: str, shown: str) -> None:
    with pytest.raises(GrammarError, match=shown):
        embedded(lark, "in_")


def test_the_rules_with_parameters_of_a_schema_can_be_embedded() -> None:
    schema = '{"type":"array","uniqueItems":true,"items":{"enum":["a",1]}}'
    prepared = prepare(GrammarSpec(GrammarKind.JSON_SCHEMA, schema))
    lark = 'start: "<" x_start ">"\n' + embedded(prepared.text, "x_")

    grammar = compile_grammar(replace(prepared, text=lark), byte_vocabulary())

    taken = [text for text in ('<["a",1]>', "<[]>", "<[1,1]>", "[1]") if takes_text(grammar, text)]
    assert taken == ['<["a",1]>', "<[]>"]
