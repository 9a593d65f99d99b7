"""prepare_for_xgrammar: what stands for prepare in a server that is told to use xgrammar.

The same checks, then an allow-list of what that engine enforces exactly; all else is refused.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace

from .json_schema import regex_match
from .json_schema.for_xgrammar import check_for_xgrammar
from .json_schema.regex_parser import parse_pattern
from .json_schema.schema_text import parse_json
from .matcher import NO_TEXT, GrammarError
from .prepare import prepare
from .prepared import GrammarEngine, PreparedForm, PreparedGrammar
from .spec import GrammarKind, GrammarSpec

# ^ but for the first, and $ but for the last, outside of escapes and classes.
_ANCHOR_INSIDE = re.compile(
    r"\A\^?+(?:\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|[^\\\[$^])*(?P<anchor>\^|\$(?!\Z))", re.DOTALL
)
_CLASS = re.compile(r"\\.|(?P<char_class>\[\^(?:\\.|[^\]\\])*\])", re.DOTALL)


def prepare_for_xgrammar(spec: GrammarSpec) -> PreparedGrammar:
    """Check spec for xgrammar. Raises GrammarError."""
    checked = replace(prepare(spec), engine=GrammarEngine.XGRAMMAR)
    match spec.kind:
        case GrammarKind.JSON_SCHEMA:
            check_for_xgrammar(parse_json(spec.text))
            return replace(checked, form=PreparedForm.JSON_SCHEMA, text=spec.text)
        case GrammarKind.CHOICE:
            options = " | ".join(json.dumps(one) for one in json.loads(spec.text))
            return replace(checked, form=PreparedForm.EBNF, text=f"root ::= {options}\n")
        case GrammarKind.REGEX:
            if (found := _ANCHOR_INSIDE.search(spec.text)) is not None:
                raise GrammarError(
                    f"regex: {found['anchor']} at character {found.start('anchor') + 1} is ignored "
                    "by xgrammar, which matches the whole output; leave it out"
                )
            _raise_if_class_is_empty(spec.text)
            return checked
        case GrammarKind.EBNF:
            # prepare has refused rules without an end, in which this engine looks for one for ever.
            return replace(checked, form=PreparedForm.EBNF, text=spec.text)
    raise GrammarError(
        f"{spec.kind.value} is not available with xgrammar; start the server with "
        "--grammar-backend auto"
    )


def _raise_if_class_is_empty(regex: str) -> None:
    """Refuse [^\\s\\S] and the like, which this engine takes, and then allows nothing at it."""
    for found in _CLASS.finditer(regex):
        if found["char_class"] is None or not _has_no_text(f"^{found['char_class']}$"):
            continue
        if _has_no_text(f"^(?:{regex})$"):
            raise GrammarError(NO_TEXT)
        raise GrammarError(
            f"regex: {found['char_class']} at character {found.start() + 1} allows no character; "
            "leave out what needs one"
        )


def _has_no_text(pattern: str) -> bool:
    """Whether nothing matches, as far as the pattern can be read."""
    try:
        return regex_match.is_empty(parse_pattern(pattern))
    except GrammarError:
        return False
