"""However the text of an answer is cut into deltas, thinking, content and calls are the same."""

from __future__ import annotations

import json
import random
from collections.abc import Callable

import pytest

from runtime.srt.reasoning.splitter import ReasoningSplitter, Split
from runtime.srt.reasoning.styles import STYLES, Thinking
from runtime.srt.tool_calls.families import HERMES, LLAMA3, MISTRAL, PYTHONIC, SMOLLM2, ToolFamily
from runtime.srt.tool_calls.pieces import (
    ArgumentsPiece,
    CallPiece,
    Piece,
    ToolCallParser,
    joined,
    parse_answer,
)

NAMES = frozenset({"f", "get"})
# Parts that make and break calls, to be put together at random.
_SHARED = [
    *("a", " ", "\n", "é<", "{", "}", "[", "]", ",", ";", ":", '"', "\\", "'"),
    *('{"name": "f", "arguments": {"a": [1, -2.5e3, true, null, "x\\n\\u00e9"]}}',),
    *('{"parameters": {}, "name": "get"}', '{"name": "f"}', '{"name": "other"}'),
    *('{"name": "f", "parameters": ', '{"name": "f", "arguments": {"k": "</tool_call>"}}'),
]
_MARKS = {
    HERMES.name: ["<tool_call>", "</tool_call>", "<tool", "<tool_call>\n", "\n</tool_call>"],
    SMOLLM2.name: ["<tool_call>[", "]</tool_call>", "<tool_call>", "</tool"],
    LLAMA3.name: ["<|python_tag|>", "<|python", "; "],
    MISTRAL.name: ["[TOOL_CALLS]", "[TOOL_CALLS][", "f[ARGS]", "[TOOL", "get{"],
    PYTHONIC.name: ["[f(", "get(", "a=1", ", ", "b='x, (y'", ")]", ")", "c={'k': [1]}"],
}


def _random_text(family: ToolFamily, random_: random.Random) -> str:
    marks = _MARKS[family.name]
    parts = marks * 3 + _SHARED
    start = marks[0] if random_.random() < 0.5 else ""  # some calls stand at the beginning only
    return start + "".join(random_.choice(parts) for _ in range(random_.randrange(1, 12)))


def _chunks(text: str, random_: random.Random) -> list[str]:
    most = random_.choice([1, 2, 5, 30])
    chunks = []
    while text:
        size = random_.randint(1, most)
        chunks.append(text[:size])
        text = text[size:]
    return chunks


def _checked(pieces: list[Piece], parser: ToolCallParser) -> None:
    """Indices count up, names come first, and every call but broken ones is a JSON object."""
    num_begun = 0
    for piece in pieces:
        if isinstance(piece, CallPiece):
            assert piece.index == num_begun
            num_begun += 1
        elif isinstance(piece, ArgumentsPiece):
            assert piece.index == num_begun - 1 and piece.text
    whole = joined(pieces).calls
    num_objects = 0
    for call in whole:
        try:
            assert isinstance(json.loads(call.arguments), dict)
            num_objects += 1
        except ValueError:
            assert parser.has_incomplete_call
    assert parser.has_incomplete_call == (num_objects < len(whole))


@pytest.mark.parametrize(
    "family", [HERMES, SMOLLM2, LLAMA3, MISTRAL, PYTHONIC], ids=lambda f: f.name
)
def test_calls_do_not_depend_on_the_chunks(family: ToolFamily) -> None:
    random_ = random.Random(5)
    num_with_calls = 0
    for _ in range(800):
        text = _random_text(family, random_)
        was_cut = random_.random() < 0.5
        has_grammar = random_.random() < 0.3
        whole = parse_answer(family.parser(NAMES, has_grammar=has_grammar), text, was_cut)
        parser = family.parser(NAMES, has_grammar=has_grammar)

        pieces: list[Piece] = []
        for chunk in _chunks(text, random_):
            pieces += parser.push(chunk)
        pieces += parser.finish(was_cut)

        assert joined(pieces) == whole, text
        _checked(pieces, parser)
        num_with_calls += bool(whole.calls)
    assert num_with_calls > 50


def test_whole_calls_come_out_as_they_were_written() -> None:
    random_ = random.Random(6)
    for _ in range(300):
        family = random_.choice([HERMES, SMOLLM2, LLAMA3, MISTRAL])
        layout = family.layout
        wanted = [
            (random_.choice(sorted(NAMES)), json.dumps(_random_value(random_, 3)))
            for _ in range(random_.randrange(1, 4))
        ]
        calls = layout.separator.join(
            f"{layout.before_name}{json.dumps(name)}{layout.before_arguments}{arguments}"
            f"{layout.after_call}"
            for name, arguments in wanted
        )

        answer = parse_answer(
            family.parser(NAMES, has_grammar=True), layout.opener + calls + layout.closer
        )

        assert [(one.name, one.arguments) for one in answer.calls] == wanted
        assert answer.content == ""


def _random_value(random_: random.Random, depth: int) -> dict[str, object]:
    return {
        _random_text(HERMES, random_): _leaf(random_, depth) for _ in range(random_.randrange(3))
    }


def _leaf(random_: random.Random, depth: int) -> object:
    kinds: list[Callable[[], object]] = [
        lambda: _random_text(MISTRAL, random_),
        lambda: random_.choice([True, False, None, 0, -7, 1.5e-9, 10**20]),
        lambda: [_leaf(random_, depth - 1) for _ in range(2)] if depth else [],
        lambda: _random_value(random_, depth - 1) if depth else {},
    ]
    return random_.choice(kinds)()


@pytest.mark.parametrize("start", list(Thinking), ids=lambda one: one.name)
def test_thinking_does_not_depend_on_the_chunks(start: Thinking) -> None:
    random_ = random.Random(7)
    style = STYLES["qwen3"]
    parts = ["<think>", "</think>", "<thi", "</", "a", " ", "\n", "\n\n", "b < c", "é"]
    for _ in range(800):
        text = "".join(random_.choice(parts) for _ in range(random_.randrange(1, 9)))
        whole = _split(ReasoningSplitter(style, start), [text])

        assert _split(ReasoningSplitter(style, start), _chunks(text, random_)) == whole, text


def _split(splitter: ReasoningSplitter, chunks: list[str]) -> Split:
    splits = [*[splitter.push(chunk) for chunk in chunks], splitter.finish()]
    return Split("".join(one.reasoning for one in splits), "".join(one.content for one in splits))
