"""The formats of a structural tag: free text with tagged parts that follow a schema or pattern.

Read from the JSON that clients send: {"format": ...} with a tree of formats as xgrammar names them,
or the older {"structures": [...], "triggers": [...]}. What is read is checked; formats that cannot
be enforced are refused by name.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from .matcher import GrammarError

MAX_FORMATS = 2000  # in one structural tag
MAX_DEPTH = 16


@dataclass(frozen=True, slots=True)
class ConstString:
    """Exactly value."""

    value: str


@dataclass(frozen=True, slots=True)
class JsonText:
    """JSON that satisfies a schema, kept as text for its key order."""

    schema_text: str


@dataclass(frozen=True, slots=True)
class LarkText:
    """Text of a Lark grammar with the rule `start`: what a checked schema may have become."""

    grammar: str


@dataclass(frozen=True, slots=True)
class Regex:
    """Text that matches pattern whole."""

    pattern: str


@dataclass(frozen=True, slots=True)
class AnyText:
    """Any text without one of excludes in it, or of begins_without (our own field) in front.

    In front means after whitespace, if there is any.
    """

    excludes: tuple[str, ...] = ()
    begins_without: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Token:
    """One control token, by id or name."""

    token: int | str


@dataclass(frozen=True, slots=True)
class Sequence:
    """elements, one after the other."""

    elements: tuple[Format, ...]


@dataclass(frozen=True, slots=True)
class Or:
    """One of elements."""

    elements: tuple[Format, ...]


@dataclass(frozen=True, slots=True)
class Tag:
    """begin, content and one of ends."""

    begin: str | Token
    content: Format
    ends: tuple[str | Token, ...]


@dataclass(frozen=True, slots=True)
class TriggeredTags:
    """Free text in which a trigger must go on as one of tags.

    at_least_one: the text begins with a tag. stop_after_first: it ends with the first tag.
    """

    triggers: tuple[str, ...]
    tags: tuple[Tag, ...]
    at_least_one: bool = False
    stop_after_first: bool = False
    excludes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SeparatedTags:
    """tags with separator between them."""

    tags: tuple[Tag, ...]
    separator: str
    at_least_one: bool = False
    stop_after_first: bool = False


Format: TypeAlias = (
    ConstString
    | JsonText
    | LarkText
    | Regex
    | AnyText
    | Token
    | Sequence
    | Or
    | Tag
    | TriggeredTags
    | SeparatedTags
)


def parse_structural_tag(text: str) -> Format:
    """Read the JSON text of a structural tag; raises GrammarError with a pointer to the mistake."""
    return _Reader().root(loaded(text))


def loaded(text: str) -> dict[str, Any]:
    """Parse text as the object of a structural tag. Raises GrammarError."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise GrammarError(f"the structural tag is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise GrammarError("a structural tag is a JSON object", pointer="")
    return value


class _Reader:
    def __init__(self) -> None:
        self._num_formats = 0
        self._depth = 0

    def root(self, value: dict[str, Any]) -> Format:
        if "format" in value:
            return self._format(value["format"], "/format")
        if "structures" in value:
            return self._structures(value)
        raise GrammarError("a structural tag needs `format`, or `structures`", pointer="")

    def _structures(self, value: dict[str, Any]) -> Format:
        tags = []
        for index, one in enumerate(_list(value, "structures", "")):
            where = f"/structures/{index}"
            fields = _object(one, where)
            if "content" in fields:  # what a checked schema has become
                content = self._format(fields["content"], f"{where}/content")
            else:
                content = JsonText(_schema_text(fields, "schema", where))
            tags.append(Tag(_text(fields, "begin", where), content, (_text(fields, "end", where),)))
        return self._triggered(value, "", tuple(tags))

    def _format(self, value: Any, where: str) -> Format:
        fields = _object(value, where)
        kind = fields.get("type")
        read = self._readers().get(kind) if isinstance(kind, str) else None
        if read is None:
            known = ", ".join(self._readers())
            raise GrammarError(f"the format {kind!r} is none of {known}", pointer=f"{where}/type")
        self._num_formats += 1
        self._depth += 1
        if self._num_formats > MAX_FORMATS:
            raise GrammarError(
                f"more than {MAX_FORMATS} formats in a structural tag", pointer=where
            )
        if self._depth > MAX_DEPTH:
            raise GrammarError(f"formats are nested more than {MAX_DEPTH} deep", pointer=where)
        found = read(fields, where)
        self._depth -= 1
        return found

    def _readers(self) -> dict[str, Callable[[dict[str, Any], str], Format]]:
        return {
            "const_string": lambda fields, where: ConstString(_text(fields, "value", where)),
            "json_schema": self._json_schema,
            "lark": lambda fields, where: LarkText(_text(fields, "grammar", where)),
            "regex": lambda fields, where: Regex(_text(fields, "pattern", where)),
            "any_text": lambda fields, where: AnyText(
                _texts(fields, "excludes", where), _texts(fields, "begins_without", where)
            ),
            "token": lambda fields, where: _token(fields, where),
            "sequence": lambda fields, where: Sequence(self._elements(fields, where)),
            "or": lambda fields, where: Or(self._elements(fields, where)),
            "tag": self._tag,
            "triggered_tags": lambda fields, where: self._triggered(
                fields, where, self._tags(fields, where)
            ),
            "tags_with_separator": self._separated,
        }

    def _json_schema(self, fields: dict[str, Any], where: str) -> Format:
        for name, value in fields.items():
            if name in ("type", "json_schema", "where") or (name, value) in _NEUTRAL:
                continue  # where: what errors call the schema, our own field
            raise GrammarError("an option that is not offered", keyword=name, pointer=where)
        return JsonText(_schema_text(fields, "json_schema", where))

    def _elements(self, fields: dict[str, Any], where: str) -> tuple[Format, ...]:
        elements = _list(fields, "elements", where)
        if not elements:
            raise GrammarError("elements is empty", pointer=f"{where}/elements")
        return tuple(
            self._format(one, f"{where}/elements/{index}") for index, one in enumerate(elements)
        )

    def _tags(self, fields: dict[str, Any], where: str) -> tuple[Tag, ...]:
        tags = []
        for index, one in enumerate(_list(fields, "tags", where)):
            tags.append(self._tag(_object(one, f"{where}/tags/{index}"), f"{where}/tags/{index}"))
        return tuple(tags)

    def _tag(self, fields: dict[str, Any], where: str) -> Tag:
        begin = _text_or_token(fields.get("begin"), f"{where}/begin")
        content = self._format(fields.get("content"), f"{where}/content")
        end = fields.get("end")
        ends = end if isinstance(end, list) and end else [end]
        return Tag(begin, content, tuple(_text_or_token(one, f"{where}/end") for one in ends))

    def _triggered(self, fields: dict[str, Any], where: str, tags: tuple[Tag, ...]) -> Format:
        triggers = _texts(fields, "triggers", where)
        if not triggers or not all(triggers):
            raise GrammarError("triggers must be texts, at least one", pointer=f"{where}/triggers")
        for index, tag in enumerate(tags):
            begin = tag.begin
            if isinstance(begin, Token) or not any(map(begin.startswith, triggers)):
                raise GrammarError(
                    f"tag {index} does not begin with a trigger", pointer=f"{where}/triggers"
                )
        return TriggeredTags(
            triggers,
            tags,
            _flag(fields, "at_least_one", where),
            _flag(fields, "stop_after_first", where),
            _texts(fields, "excludes", where),
        )

    def _separated(self, fields: dict[str, Any], where: str) -> Format:
        tags = self._tags(fields, where)
        if not tags:
            raise GrammarError("tags is empty", pointer=f"{where}/tags")
        return SeparatedTags(
            tags,
            _text(fields, "separator", where),
            _flag(fields, "at_least_one", where),
            _flag(fields, "stop_after_first", where),
        )


# Fields of xgrammar's json_schema format at values that ask for nothing.
_NEUTRAL: list[tuple[str, Any]] = [
    ("style", "json"),
    ("any_order", False),
    ("max_whitespace_cnt", None),
    ("excludes", []),
]


def _object(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise GrammarError("an object is missing", pointer=where)
    return value


def _list(fields: dict[str, Any], name: str, where: str) -> list[Any]:
    value = fields.get(name)
    if not isinstance(value, list):
        raise GrammarError(f"{name} must be a list", pointer=f"{where}/{name}")
    return value


def _text(fields: dict[str, Any], name: str, where: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str):
        raise GrammarError(f"{name} must be a string", pointer=f"{where}/{name}")
    return value


def _texts(fields: dict[str, Any], name: str, where: str) -> tuple[str, ...]:
    value = fields.get(name)
    if value is None:
        return ()
    if not isinstance(value, list) or any(not isinstance(one, str) for one in value):
        raise GrammarError(f"{name} must be a list of strings", pointer=f"{where}/{name}")
    return tuple(value)


def _flag(fields: dict[str, Any], name: str, where: str) -> bool:
    value = fields.get(name)
    if value is not None and not isinstance(value, bool):
        raise GrammarError(f"{name} must be a boolean", pointer=f"{where}/{name}")
    return bool(value)


def _schema_text(fields: dict[str, Any], name: str, where: str) -> str:
    value = fields.get(name)
    if isinstance(value, dict | bool):
        return json.dumps(value, ensure_ascii=False)
    raise GrammarError(f"{name} must be a JSON schema", pointer=f"{where}/{name}")


def _token(fields: dict[str, Any], where: str) -> Token:
    token = fields.get("token")
    is_id = type(token) is int and token >= 0
    is_name = isinstance(token, str) and token.startswith("<") and token.endswith(">")
    if not (is_id or is_name):
        raise GrammarError(
            "token must be a token's id, or a name of the form <...>", pointer=f"{where}/token"
        )
    assert isinstance(token, int | str)
    return Token(token)


def _text_or_token(value: Any, where: str) -> str | Token:
    if isinstance(value, str):
        return value
    if isinstance(value, dict) and value.get("type") == "token":
        return _token(value, where)
    raise GrammarError("a string or a token is missing", pointer=where)
