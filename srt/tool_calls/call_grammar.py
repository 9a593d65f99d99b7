"""tool_grammar: the grammar under which a model's calls are those of the request, and well-formed.

A structural tag (grammars/tag_formats.py): the family's own markers around the call, the tool's own
schema for its arguments.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from runtime.grammars.spec import GrammarKind, GrammarSpec, JsonWhitespace

from ..errors import BadRequest
from .families import CallLayout, ToolFamily
from .tool import ChoiceMode, ToolUse

_ANY_OBJECT: dict[str, Any] = {"type": "object"}


def tool_grammar(
    use: ToolUse,
    family: ToolFamily,
    *,
    special_ids: Mapping[str, int],
    whitespace: JsonWhitespace,
    answer: GrammarSpec | None = None,
) -> GrammarSpec | None:
    """The grammar of an answer that may use tools; None if it is free.

    Required and named calls are forced, one if calls in parallel are not allowed. Under auto the
    text is free until a call begins, if a tool is strict, or only one call is allowed. answer is
    what an answer that is no call must follow: a JSON object or schema; then nothing else is free.
    special_ids has the control tokens by their text. Raises BadRequest for what cannot be combined.
    """
    if not use.callable_tools:
        return answer
    writer = _Writer(family, special_ids)
    one_only = use.mode is ChoiceMode.NAMED or not use.parallel
    if use.is_forced:
        if answer is not None:
            raise BadRequest(
                "tool_choice asks for a call, which response_format cannot describe; leave one out",
                param="tool_choice",
            )
        return _spec(writer.calls(_offers(use, keeps_all=True), one_only), whitespace)
    offered = _offers(use, keeps_all=False)
    if answer is not None:
        if family.layout.trigger is None:
            raise BadRequest(
                f"calls of the {family.name} family have no mark of their own, so tools and "
                'response_format cannot be combined; leave one out, or set tool_choice to "none"',
                param="response_format",
            )
        calls = writer.calls(offered, one_only)
        return _spec(
            {"type": "or", "elements": [calls, _answer_format(answer)]},
            answer.whitespace,
            answer.drop_unsupported,
        )
    if not any(one.strict for one in use.callable_tools) and not one_only:
        return None
    return _spec(writer.free_text_with(offered, one_only), whitespace)


@dataclass(frozen=True, slots=True)
class _Offer:
    """A function and the format of its arguments."""

    name: str
    arguments: dict[str, Any]


def _offers(use: ToolUse, *, keeps_all: bool) -> list[_Offer]:
    """What may be called; the schema of a tool that is not strict is kept if keeps_all."""
    offers = []
    for index, tool in enumerate(use.tools):
        if tool in use.callable_tools:
            schema = json.loads(tool.schema_text) if keeps_all or tool.strict else _ANY_OBJECT
            where = f"tools.{index}.function.parameters"
            arguments = {"type": "json_schema", "json_schema": schema, "where": where}
            offers.append(_Offer(tool.name, arguments))
    return offers


def _answer_format(answer: GrammarSpec) -> dict[str, Any]:
    if answer.kind is GrammarKind.JSON_OBJECT:
        return {"type": "json_schema", "json_schema": _ANY_OBJECT}
    if answer.kind is GrammarKind.JSON_SCHEMA:
        try:
            return {"type": "json_schema", "json_schema": json.loads(answer.text)}
        except (ValueError, RecursionError) as error:
            raise BadRequest(f"the schema is not JSON: {error}", param="response_format") from None
    raise BadRequest(
        f"tools cannot be combined with a grammar of the kind {answer.kind.value}; only with a "
        'JSON response format, or with tool_choice "none"',
        param="tools",
    )


def _spec(
    format_tree: dict[str, Any], whitespace: JsonWhitespace, drop_unsupported: bool = False
) -> GrammarSpec:
    text = json.dumps({"format": format_tree}, ensure_ascii=False)
    return GrammarSpec(GrammarKind.STRUCTURAL_TAG, text, whitespace, drop_unsupported)


class _Writer:
    """Writes one family's calls as formats of a structural tag."""

    def __init__(self, family: ToolFamily, special_ids: Mapping[str, int]) -> None:
        self._layout: CallLayout = family.layout
        self._markers = family.markers
        self._special_ids = {
            text: special_ids[text] for text in family.markers if text in special_ids
        }

    def calls(self, offers: list[_Offer], one_only: bool) -> dict[str, Any]:
        """One call, or several, and nothing else."""
        layout = self._layout
        several = self._several(offers, one_only)
        return _sequence([*self._parts(layout.opener), several, *self._parts(layout.closer)])

    def free_text_with(self, offers: list[_Offer], one_only: bool) -> dict[str, Any]:
        """Free text, in which calls are those of tools."""
        layout = self._layout
        if layout.trigger is None:
            # Such calls stand alone: a text that is none must not begin like one.
            first = (layout.opener + layout.before_name)[0]
            text = {**self._text(), "begins_without": [first]}
            return {"type": "or", "elements": [self.calls(offers, one_only), text]}
        if self._special_ids:
            text = self._text()
            called = _sequence([text, self.calls(offers, one_only)])
            return {"type": "or", "elements": [called, text]}
        tags = [self._tag(one) for one in offers]
        if layout.opener:
            several = self._several(offers, one_only)
            begin, end = layout.opener, layout.closer
            tags = [{"type": "tag", "begin": begin, "content": several, "end": end}]
        return {
            "type": "triggered_tags",
            "triggers": [layout.trigger],
            "tags": tags,
            "stop_after_first": one_only,
        }

    def _text(self) -> dict[str, Any]:
        """Text without markers; those that are control tokens are never in text."""
        excludes = [one for one in self._markers if one not in self._special_ids]
        return {"type": "any_text", "excludes": excludes}

    def _several(self, offers: list[_Offer], one_only: bool) -> dict[str, Any]:
        return {
            "type": "tags_with_separator",
            "tags": [self._tag(one) for one in offers],
            "separator": self._layout.separator,
            "at_least_one": True,
            "stop_after_first": one_only,
        }

    def _tag(self, offer: _Offer) -> dict[str, Any]:
        layout = self._layout
        begin = f"{layout.before_name}{json.dumps(offer.name)}{layout.before_arguments}"
        content = offer.arguments
        if not self._special_ids:
            return {"type": "tag", "begin": begin, "content": content, "end": layout.after_call}
        whole = _sequence([*self._parts(begin), content, *self._parts(layout.after_call)])
        return {"type": "tag", "begin": "", "content": whole, "end": ""}

    def _parts(self, text: str) -> list[dict[str, Any]]:
        """text as constant strings and control tokens."""
        if not text:
            return []
        for marker, token_id in self._special_ids.items():
            before, found, after = text.partition(marker)
            if found:
                token = {"type": "token", "token": token_id}
                return [*self._parts(before), token, *self._parts(after)]
        return [{"type": "const_string", "value": text}]


def _sequence(elements: list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "sequence", "elements": elements}
