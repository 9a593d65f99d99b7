"""The model families whose tool calls are known: how they write them, and who is recognised how.

A family is a value of --tool-call-parser. A chat template shows its family by the marker that it
tells the model to write.
"""

from __future__ import annotations

import secrets
import string
from collections.abc import Container
from dataclasses import dataclass

from .block_parser import BlockCallParser, BlockSyntax
from .pieces import ToolCallParser
from .pythonic_parser import PythonicCallParser


@dataclass(frozen=True, slots=True)
class CallLayout:
    """How a grammar lets a family write calls: opener, calls with separators between, closer.

    A call is before_name, its name as a JSON string, before_arguments, the arguments, after_call.
    trigger opens a call in free text; None: calls stand at the very beginning, and free text must
    not begin like one.
    """

    opener: str = ""
    before_name: str = '{"name": '
    before_arguments: str = ', "arguments": '
    after_call: str = "}"
    separator: str = ", "
    closer: str = ""
    trigger: str | None = None


@dataclass(frozen=True, slots=True)
class ToolFamily:
    """One way to write calls. syntax None: the pythonic one.

    markers are texts that may be single special tokens, which must then not be left out of the
    text that is parsed.
    """

    name: str
    syntax: BlockSyntax | None
    layout: CallLayout
    markers: tuple[str, ...] = ()
    has_short_ids: bool = False

    def parser(self, names: Container[str], *, has_grammar: bool) -> ToolCallParser:
        """A fresh parser of one answer; has_grammar: its calls follow tool_grammar."""
        if self.syntax is not None:
            return BlockCallParser(self.syntax, names)
        if has_grammar:
            return BlockCallParser(BlockSyntax(is_at_start=True), names)
        return PythonicCallParser(names)

    def new_call_id(self) -> str:
        """A fresh id of a call, in the form that the family's template takes back."""
        if self.has_short_ids:
            return "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(9))
        return f"call_{secrets.token_hex(12)}"


_TAG_OPENER, _TAG_CLOSER = "<tool_call>", "</tool_call>"
_PYTHON_TAG = "<|python_tag|>"
_CALLS_MARK = "[TOOL_CALLS]"
_TAGGED = BlockSyntax(opener=_TAG_OPENER, closer=_TAG_CLOSER)

HERMES = ToolFamily(
    "hermes",
    _TAGGED,
    CallLayout(
        before_name=f'{_TAG_OPENER}\n{{"name": ',
        after_call=f"}}\n{_TAG_CLOSER}",
        separator="\n",
        trigger=_TAG_OPENER,
    ),
    markers=(_TAG_OPENER, _TAG_CLOSER),
)
LLAMA3 = ToolFamily(
    "llama3",
    BlockSyntax(opener=_PYTHON_TAG, is_at_start=True),
    CallLayout(before_arguments=', "parameters": ', separator="; "),
    markers=(_PYTHON_TAG,),
)
MISTRAL = ToolFamily(
    "mistral",
    BlockSyntax(opener=_CALLS_MARK, has_bare_names=True),
    CallLayout(opener=f"{_CALLS_MARK}[", closer="]", trigger=_CALLS_MARK),
    markers=(_CALLS_MARK, "[ARGS]", "[CALL_ID]"),
    has_short_ids=True,
)
# Keyword arguments have no grammar that holds every schema: under a grammar calls are a JSON list.
PYTHONIC = ToolFamily("pythonic", None, CallLayout(opener="[", closer="]"))
# SmolLM2 was taught a JSON list of calls inside the tags.
SMOLLM2 = ToolFamily(
    "smollm2",
    _TAGGED,
    CallLayout(
        opener=f"{_TAG_OPENER}[",
        closer=f"]{_TAG_CLOSER}",
        trigger=_TAG_OPENER,
    ),
    markers=(_TAG_OPENER, _TAG_CLOSER),
)

_BY_NAME = {one.name: one for one in (HERMES, LLAMA3, MISTRAL, PYTHONIC, SMOLLM2)} | {
    "qwen": HERMES,
    "qwen25": HERMES,
    "qwen3": HERMES,
}
FAMILY_NAMES = tuple(_BY_NAME)


def family_of(name: str, template: str | None) -> ToolFamily:
    """Return the family of that name; for "auto" the one that a chat template's source shows.

    A template that knows no tools gets the list in tags that the bundled model was taught, with a
    system prompt that explains it (plain_prompt.py).
    """
    if name != "auto":
        return _BY_NAME[name]
    if not writes_tools(template):
        return SMOLLM2
    assert template is not None
    if _CALLS_MARK in template:
        return MISTRAL
    if _TAG_OPENER in template:
        return HERMES
    if _PYTHON_TAG in template or '"parameters"' in template:
        return LLAMA3
    if "func_name1(" in template:
        return PYTHONIC
    return HERMES


def writes_tools(template: str | None) -> bool:
    """Whether the template with this source tells the model about tools."""
    return template is not None and "tools" in template
