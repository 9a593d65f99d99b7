"""A Lark grammar inside another: names are kept apart, everything else stays."""

from __future__ import annotations

import pytest

from runtime.grammars.lark_embedding import embedded
from runtime.grammars.matcher import GrammarError


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
