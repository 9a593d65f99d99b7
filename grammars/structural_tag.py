"""Structural tags: checked, what is in them prepared, and all of it as one Lark grammar.

Free text ends lazily at the first trigger, so that what follows it is the tag's from the first
character on.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

from .lark_embedding import embedded
from .matcher import GrammarError
from .prepared import GrammarEngine, PreparedForm, PreparedGrammar
from .spec import GrammarKind, GrammarSpec
from .tag_formats import (
    AnyText,
    ConstString,
    Format,
    JsonText,
    LarkText,
    Or,
    Regex,
    SeparatedTags,
    Sequence,
    Tag,
    Token,
    TriggeredTags,
    loaded,
    parse_structural_tag,
)

# A chain of forced text need not end in a grammar whose terminals take all they can, and the
# library follows it to the end: such grammars are matched without looking ahead.
NO_FORCING = '%llguidance {"no_forcing": true}'

_ANY = "(?s:.*)"
_SLASH = "\\/"


def prepare_structural_tag(
    spec: GrammarSpec, prepare: Callable[[GrammarSpec], PreparedGrammar]
) -> PreparedGrammar:
    """Check a structural tag and have prepare check what is in it: schemas, regexes and grammars.

    Raises GrammarError for what cannot be enforced; its pointer leads into the structural tag.
    """
    parse_structural_tag(spec.text)
    value = loaded(spec.text)
    preparer = _Preparer(spec, prepare)
    if "format" in value:
        preparer.format(value["format"], "/format")
    else:
        for index, one in enumerate(value["structures"]):
            one["content"] = {"type": "json_schema", "json_schema": one.pop("schema")}
            preparer.format(one["content"], f"/structures/{index}/schema")
    text = json.dumps(value, ensure_ascii=False)
    return PreparedGrammar(
        GrammarEngine.LLGUIDANCE,
        PreparedForm.STRUCTURAL_TAG,
        text,
        spec.whitespace,
        tuple(preparer.dropped),
    )


def lark_of_structural_tag(text: str, json_options: Mapping[str, Any]) -> str:
    """Return a structural tag as a Lark grammar; json_options are llguidance's, of every schema."""
    return _Writer(json_options).grammar(parse_structural_tag(text))


class _Preparer:
    """Replaces what stands in a structural tag by what prepare makes of it."""

    def __init__(
        self, spec: GrammarSpec, prepare: Callable[[GrammarSpec], PreparedGrammar]
    ) -> None:
        self.dropped: list[str] = []
        self._spec = spec
        self._prepare = prepare

    def format(self, node: dict[str, Any], where: str) -> None:
        match node.get("type"):
            case "json_schema":
                schema = json.dumps(node["json_schema"], ensure_ascii=False)
                self._replace(node, GrammarKind.JSON_SCHEMA, schema, where, "json_schema")
            case "regex":
                self._replace(node, GrammarKind.REGEX, node["pattern"], where, "pattern")
            case "lark":
                self._replace(node, GrammarKind.LARK, node["grammar"], where, "grammar")
        for name in ("elements", "tags"):
            for index, child in enumerate(node.get(name) or ()):
                self.format(child, f"{where}/{name}/{index}")
        if "content" in node:
            self.format(node["content"], f"{where}/content")

    def _replace(
        self, node: dict[str, Any], kind: GrammarKind, text: str, where: str, field: str
    ) -> None:
        spec = GrammarSpec(kind, text, self._spec.whitespace, self._spec.drop_unsupported)
        path = node.get("where") or (where if where.endswith("/schema") else f"{where}/{field}")
        try:
            prepared = self._prepare(spec)
        except GrammarError as error:
            pointer = f"{path}{error.pointer or ''}"
            raise GrammarError(error.reason, pointer=pointer, keyword=error.keyword) from None
        self.dropped += [f"{path}{one}" for one in prepared.dropped]
        node.clear()
        match prepared.form:
            case PreparedForm.JSON_SCHEMA:
                node |= {"type": "json_schema", "json_schema": json.loads(prepared.text)}
            case PreparedForm.REGEX:
                node |= {"type": "regex", "pattern": prepared.text}
            case PreparedForm.LARK:
                # A grammar from outside may force text without end; what schemas become does not.
                option = f"{NO_FORCING}\n" if kind is GrammarKind.LARK else ""
                node |= {"type": "lark", "grammar": option + prepared.text}
            case form:
                raise AssertionError(f"a {kind.value} was prepared as {form.value}")


class _Writer:
    """Collects the rules of one grammar."""

    def __init__(self, json_options: Mapping[str, Any]) -> None:
        self._json_options = dict(json_options)
        self._lines: list[str] = []
        self._forces = True

    def grammar(self, root: Format) -> str:
        start = self._write(root)
        options = [] if self._forces else [NO_FORCING]
        return "\n".join([*options, f"start: {start}", *self._lines]) + "\n"

    def _write(self, node: Format) -> str:
        """Return what stands for node in a rule."""
        match node:
            case ConstString(value):
                return _literal(value)
            case JsonText(schema_text):
                return self._json(schema_text)
            case LarkText(grammar):
                return self._grammar(grammar)
            case Regex(pattern):
                self._forces = False
                return self._terminal(f"/{_with_slashes_escaped(pattern)}/")
            case AnyText(excludes, begins_without):
                return self._terminal(_free_text(excludes, begins_without))
            case Token():
                return _token(node)
            case Sequence(elements):
                return self._sequence(elements)
            case Or(elements):
                return self._rule(" | ".join(self._write(one) for one in elements))
            case Tag():
                return self._rule(f"{_mark(node.begin)} {self._rest_of_tag(node)}")
            case TriggeredTags():
                return self._triggered(node)
            case SeparatedTags():
                return self._separated(node)

    def _sequence(self, elements: tuple[Format, ...]) -> str:
        for one, following in pairwise(elements):
            if isinstance(one, AnyText | TriggeredTags) and not _begins_with_token(following):
                raise GrammarError(
                    "free text in a sequence must be its last element, or stand before a token; "
                    "or be the content of a tag"
                )
        return self._rule(" ".join(self._write(one) for one in elements))

    def _rest_of_tag(self, tag: Tag) -> str:
        """What follows a tag's begin."""
        if isinstance(tag.content, AnyText):
            return self._text_until(tag.content, tag.ends)
        if isinstance(tag.content, TriggeredTags):
            raise GrammarError("free text with tags inside a tag has no certain end")
        ends = " | ".join(_mark(end) for end in tag.ends)
        return f"{self._write(tag.content)} ({ends})"

    def _text_until(self, text: AnyText, ends: tuple[str | Token, ...]) -> str:
        if text.begins_without:
            raise GrammarError("begins_without is not offered inside a tag")
        tokens = [end for end in ends if isinstance(end, Token)]
        texts = [end for end in ends if isinstance(end, str)]
        options = []
        if texts:
            if not all(texts):
                raise GrammarError("any_text in a tag needs an end that is not empty")
            options.append(self._lazy(texts, text.excludes))
        if tokens:
            free = self._terminal(_free_text(text.excludes))
            options.append(f"{free} ({' | '.join(map(_token, tokens))})")
        return f"({' | '.join(options)})"

    def _triggered(self, node: TriggeredTags) -> str:
        free = self._terminal(_free_text((*node.triggers, *node.excludes)))
        tagged = []
        for trigger in node.triggers:
            tags = [tag for tag in node.tags if _trigger_of(tag, node.triggers) == trigger]
            if tags:
                head = self._lazy([trigger], node.excludes)
                tagged.append(f"{head} {self._after(trigger, tags)}")
        if not tagged:
            if node.at_least_one:
                raise GrammarError("at_least_one is set, but there are no tags")
            return free
        later = self._rule(" | ".join(tagged))
        if not node.at_least_one:
            body = f"{free} | {later}" if node.stop_after_first else f"{later}* {free}"
            return self._rule(body)
        first = self._rule(" | ".join(self._write(tag) for tag in node.tags))
        return first if node.stop_after_first else self._rule(f"{first} {later}* {free}")

    def _after(self, trigger: str, tags: list[Tag]) -> str:
        options = []
        for tag in tags:
            assert isinstance(tag.begin, str)
            options.append(f"{_literal(tag.begin[len(trigger) :])} {self._rest_of_tag(tag)}")
        return self._rule(" | ".join(options))

    def _separated(self, node: SeparatedTags) -> str:
        one = self._rule(" | ".join(self._write(tag) for tag in node.tags))
        several = one
        if not node.stop_after_first:
            several = self._rule(f"{one} ({_literal(node.separator)} {one})*")
        return several if node.at_least_one else f"({several})?"

    def _lazy(self, ends: list[str], excludes: tuple[str, ...]) -> str:
        """A rule for text up to and with the first of ends."""
        name = f"until_{len(self._lines)}"
        choice = "|".join(map(_escaped, ends))
        self._lines.append(f"{name}[lazy]: {_without(excludes, f'/{_ANY}({choice})/')}")
        return name

    def _rule(self, body: str) -> str:
        name = f"part_{len(self._lines)}"
        self._lines.append(f"{name}: {body}")
        return name

    def _terminal(self, body: str) -> str:
        name = f"TEXT_{len(self._lines)}"
        self._lines.append(f"{name}: {body}")
        return name

    def _json(self, schema_text: str) -> str:
        schema = json.loads(schema_text)
        if schema is False:
            raise GrammarError("the schema false allows no text")
        fields = {} if schema is True else schema
        options = {**fields.get("x-guidance", {}), **self._json_options}
        return self._rule(
            "%json " + json.dumps({**fields, "x-guidance": options}, ensure_ascii=False)
        )

    def _grammar(self, lark: str) -> str:
        if NO_FORCING in lark:
            self._forces = False
        prefix = f"inner{len(self._lines)}_"
        self._lines.append(embedded(lark, prefix))
        return f"{prefix}start"


def _trigger_of(tag: Tag, triggers: tuple[str, ...]) -> str:
    """The longest trigger that tag begins with."""
    assert isinstance(tag.begin, str)
    return max((one for one in triggers if tag.begin.startswith(one)), key=len)


def _begins_with_token(node: Format) -> bool:
    match node:
        case Token():
            return True
        case Sequence(elements):
            return _begins_with_token(elements[0])
        case Or(elements):
            return all(map(_begins_with_token, elements))
        case Tag(begin, content):
            return isinstance(begin, Token) or (not begin and _begins_with_token(content))
        case SeparatedTags(tags, at_least_one=True):
            return all(map(_begins_with_token, tags))
    return False


def _free_text(excludes: tuple[str, ...], begins_without: tuple[str, ...] = ()) -> str:
    text = _without(excludes, f"/{_ANY}/")
    if not begins_without:
        return text
    return f"{text} & ~/[ \\t\\r\\n]*({'|'.join(map(_escaped, begins_without))}){_ANY}/"


def _without(excludes: tuple[str, ...], terminal: str) -> str:
    texts = [one for one in excludes if one]
    if not texts:
        return terminal
    return f"{terminal} & ~/{_ANY}({'|'.join(map(_escaped, texts))}){_ANY}/"


def _mark(mark: str | Token) -> str:
    return _literal(mark) if isinstance(mark, str) else _token(mark)


def _token(node: Token) -> str:
    return f"<[{node.token}]>" if isinstance(node.token, int) else node.token


def _literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _escaped(text: str) -> str:
    """text as a regex that matches just it, in the notation between slashes."""
    return "".join(map(_escaped_char, text))


def _escaped_char(char: str) -> str:
    if char.isalnum() or char in " _<>\"'," or ord(char) > 127:
        return char
    return "\\" + char if char.isprintable() else f"\\x{ord(char):02x}"


def _with_slashes_escaped(pattern: str) -> str:
    """pattern in the notation between slashes; a slash that is escaped already stays so."""
    parts = []
    is_escaped = False
    for char in pattern:
        parts.append(_SLASH if char == "/" and not is_escaped else char)
        is_escaped = char == "\\" and not is_escaped
    return "".join(parts)
