"""The grammar that a body asks its output to follow, under any of the names that clients use.

At most one may be given. A schema sent as an object keeps its key order; one sent as text is taken
as it is.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import msgspec

from runtime.grammars.spec import GrammarKind, GrammarSpec, JsonWhitespace

from ..errors import BadRequest

GRAMMAR_FIELDS = (
    "response_format",
    "structured_outputs",
    "json_schema",
    "guided_json",
    "regex",
    "guided_regex",
    "ebnf",
    "guided_grammar",
    "choice",
    "guided_choice",
    "structural_tag",
)
"""What openai_grammar reads."""

NATIVE_GRAMMAR_FIELDS = ("json_schema", "regex", "ebnf", "structural_tag", "choice")
"""What native_grammar reads."""


@dataclass(frozen=True, slots=True)
class GrammarField:
    """A grammar and the path of the field that it came in."""

    spec: GrammarSpec
    param: str


def native_grammar(
    whitespace: JsonWhitespace,
    *,
    json_schema: Any = None,
    regex: Any = None,
    ebnf: Any = None,
    structural_tag: Any = None,
    choice: Any = None,
) -> GrammarField | None:
    """The grammar of one set of equal-ranking fields; None if none is set. Raises BadRequest."""
    reader = _Reader(whitespace)
    reader.schema("json_schema", json_schema)
    reader.text("regex", GrammarKind.REGEX, regex)
    reader.text("ebnf", GrammarKind.EBNF, ebnf)
    reader.tags("structural_tag", structural_tag)
    reader.choice("choice", choice)
    return reader.only()


def openai_grammar(whitespace: JsonWhitespace, fields: dict[str, Any]) -> GrammarField | None:
    """The grammar of an OpenAI body; fields are OpenAiFields' by name. Raises BadRequest.

    fields has the values of GRAMMAR_FIELDS: OpenAI's own, and what other servers take beside it.
    """
    reader = _Reader(whitespace)
    _read_response_format(reader, fields["response_format"])
    _read_structured_outputs(reader, fields["structured_outputs"])
    reader.schema("json_schema", fields["json_schema"])
    reader.schema("guided_json", fields["guided_json"])
    reader.text("regex", GrammarKind.REGEX, fields["regex"])
    reader.text("guided_regex", GrammarKind.REGEX, fields["guided_regex"])
    reader.text("ebnf", GrammarKind.EBNF, fields["ebnf"])
    reader.grammar("guided_grammar", fields["guided_grammar"])
    reader.choice("choice", fields["choice"])
    reader.choice("guided_choice", fields["guided_choice"])
    reader.tags("structural_tag", fields["structural_tag"])
    return reader.only()


# Whitespace is a choice here, for which the ways a document can be finished are known.
WHITESPACE_REMEDY = f"use json_whitespace ({', '.join(one.value for one in JsonWhitespace)})"
_WHITESPACE_FIELDS = ("whitespace_pattern", "disable_any_whitespace")
_KINDS = "text, json_object, json_schema, structural_tag, regex, ebnf, lark"


def _read_response_format(reader: _Reader, value: Any) -> None:
    name = "response_format"
    if value is None:
        return
    if not isinstance(value, dict) or not isinstance(value.get("type"), str):
        raise BadRequest(f"{name} must be an object with a type: {_KINDS}", param=name)
    kind = value["type"]
    unread = {"text": ("json_schema", "schema"), "json_object": ("json_schema",)}
    for key in unread.get(kind, ()):
        if value.get(key) is not None:
            raise BadRequest(
                f"{name}.{key} is given, but {name}.type is {kind!r}; a schema is followed if "
                "the type is 'json_schema'",
                param=f"{name}.type",
            )
    if kind == "text":
        return
    if kind == "json_object" and value.get("schema") is not None:
        reader.schema(f"{name}.schema", value["schema"])  # as llama.cpp's clients send it
    elif kind == "json_object":
        reader.add(name, GrammarKind.JSON_OBJECT, "")
    elif kind == "json_schema":
        inner = value.get("json_schema")
        path = f"{name}.json_schema"
        if not isinstance(inner, dict):
            raise BadRequest(f"{path} must be an object with a schema", param=path)
        if "schema" not in inner or inner["schema"] is None:
            raise BadRequest(f"{path}.schema is missing", param=f"{path}.schema")
        strict = inner.get("strict")
        if strict is not None and not isinstance(strict, bool):
            raise BadRequest(f"{path}.strict must be a boolean", param=f"{path}.strict")
        reader.schema(f"{path}.schema", inner["schema"], may_drop=strict is False)
    elif kind == "structural_tag":
        reader.tags(name, value)
    elif kind in ("regex", "ebnf", "lark", "grammar"):
        text = value.get("pattern", value.get("grammar", value.get(kind)))
        found = {"regex": GrammarKind.REGEX, "lark": GrammarKind.LARK}
        if text is None:
            raise BadRequest(f"{name} of type {kind} holds no {kind}", param=name)
        reader.text(name, found.get(kind, GrammarKind.EBNF), text)
    else:
        raise BadRequest(f"{name}.type is {kind[:40]!r}; it must be one of {_KINDS}", param=name)


def _read_structured_outputs(reader: _Reader, value: Any) -> None:
    name = "structured_outputs"
    if value is None:
        return
    if not isinstance(value, dict):
        raise BadRequest(f"{name} must be an object", param=name)
    known = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")
    for key, one in value.items():
        if one is None:
            continue
        if key in _WHITESPACE_FIELDS:
            if one is not False:
                raise BadRequest(
                    f"{name}.{key} is not known; {WHITESPACE_REMEDY}", param=f"{name}.{key}"
                )
            continue
        if key not in known:
            raise BadRequest(
                f"{name}.{key[:40]} is not known; it takes {', '.join(known)}",
                param=f"{name}.{key[:40]}",
            )
        path = f"{name}.{key}"
        if key == "json":
            reader.schema(path, one)
        elif key == "regex":
            reader.text(path, GrammarKind.REGEX, one)
        elif key == "choice":
            reader.choice(path, one)
        elif key == "grammar":
            reader.grammar(path, one)
        elif key == "structural_tag":
            reader.tags(path, one)
        elif one is not False:
            if one is not True:
                raise BadRequest(f"{path} must be a boolean", param=path)
            reader.add(path, GrammarKind.JSON_OBJECT, "")


class _Reader:
    """Collects what is set; null and "" count as not set: clients send them as defaults."""

    def __init__(self, whitespace: JsonWhitespace) -> None:
        self._whitespace = whitespace
        self._found: list[GrammarField] = []

    def add(self, name: str, kind: GrammarKind, text: str, may_drop: bool = False) -> None:
        spec = GrammarSpec(kind, text, self._whitespace, may_drop)
        self._found.append(GrammarField(spec, name))

    def schema(self, name: str, value: Any, may_drop: bool = False) -> None:
        if value is None or value == "":
            return
        if isinstance(value, str):
            self.add(name, GrammarKind.JSON_SCHEMA, _encodable(name, value), may_drop)
        elif isinstance(value, dict | bool):
            self.add(name, GrammarKind.JSON_SCHEMA, _dumped(name, value), may_drop)
        else:
            raise BadRequest(f"{name} must be a JSON schema, an object or its text", param=name)

    def text(self, name: str, kind: GrammarKind, value: Any) -> None:
        if value is None or value == "":
            return
        if not isinstance(value, str):
            raise BadRequest(f"{name} must be a string", param=name)
        self.add(name, kind, _encodable(name, value))

    def grammar(self, name: str, value: Any) -> None:
        """A grammar in GBNF or Lark notation, told apart by the way their rules are written."""
        is_ebnf = isinstance(value, str) and "::=" in value
        self.text(name, GrammarKind.EBNF if is_ebnf else GrammarKind.LARK, value)

    def choice(self, name: str, value: Any) -> None:
        if value is None or value == []:
            return
        if not isinstance(value, list) or any(type(one) is not str for one in value):
            raise BadRequest(f"{name} must be a list of strings", param=name)
        self.add(name, GrammarKind.CHOICE, _dumped(name, value))

    def tags(self, name: str, value: Any) -> None:
        if value is None or value == "":
            return
        if isinstance(value, str):
            self.add(name, GrammarKind.STRUCTURAL_TAG, _encodable(name, value))
        elif isinstance(value, dict):
            self.add(name, GrammarKind.STRUCTURAL_TAG, _dumped(name, value))
        else:
            raise BadRequest(f"{name} must be an object or its JSON text", param=name)

    def only(self) -> GrammarField | None:
        """What is set, if it is one thing."""
        if len(self._found) > 1:
            first, second = self._found[:2]
            raise BadRequest(
                f"{first.param} and {second.param} are both given; an output follows one grammar",
                param=second.param,
            )
        return self._found[0] if self._found else None


def _encodable(name: str, text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise BadRequest(
            f"{name} contains half a surrogate pair at character {error.start}", param=name
        ) from None
    return text


def _dumped(name: str, value: Any) -> str:
    """value as JSON, its keys in their order."""
    return _dumped_quickly(value) or _dumped_exactly(name, value)


def _dumped_quickly(value: Any) -> str | None:
    """None for what msgspec does not write as it is: a schema of 500 kB holds the loop for 2 ms."""
    try:
        data = msgspec.json.encode(value)
    except (ValueError, OverflowError, RecursionError, msgspec.MsgspecError):
        return None
    # Numbers that JSON does not have are written as null.
    return None if b"null" in data else data.decode()


def _dumped_exactly(name: str, value: Any) -> str:
    try:
        return _encodable(name, json.dumps(value, ensure_ascii=False, allow_nan=False))
    except (ValueError, RecursionError):
        raise BadRequest(
            f"{name} holds a number beyond the range of a double, or is nested too deeply",
            param=name,
        ) from None
