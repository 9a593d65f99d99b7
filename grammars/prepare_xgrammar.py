"""prepare_for_xgrammar: what stands for prepare in a server that is told to use xgrammar.

The same checks, then an allow-list of what that engine enforces exactly; all else is refused.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace

from .json_schema.for_xgrammar import check_for_xgrammar
from .json_schema.schema_text import parse_json
from .matcher import GrammarError
from .prepare import prepare
from .prepared import GrammarEngine, PreparedForm, PreparedGrammar
from .spec import GrammarKind, GrammarSpec

# ^ but for the first, and $ but for the last, outside of escapes and classes.
_ANCHOR_INSIDE = re.compile(
    r"\A\^?+(?:\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|[^\\\[$^])*(?P<anchor>\^|\$(?!\Z))", re.DOTALL
)


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
            return checked
        case GrammarKind.EBNF:
            # prepare has refused rules without an end, in which this engine looks for one for ever.
            return replace(checked, form=PreparedForm.EBNF, text=spec.text)
    raise GrammarError(
        f"{spec.kind.value} is not available with xgrammar; start the server with "
        "--grammar-backend auto"
    )
