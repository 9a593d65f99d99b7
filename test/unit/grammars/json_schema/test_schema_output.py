"""How the JSON text of a schema may be written."""

from __future__ import annotations

import json

import pytest
from support.schema_rig import accepted, schema_grammar

from runtime.grammars.spec import MAX_WHITESPACE, JsonWhitespace

INTEGER = {"type": "integer"}
PAIR = {
    "type": "object",
    "properties": {"b": {"type": "array", "items": INTEGER}, "a": INTEGER},
    "required": ["b", "a"],
    "additionalProperties": False,
}
COMPACT = '{"b":[1,2],"a":3}'
SPACED = '{"b": [1, 2], "a": 3}'
WIDE = '{\n "b"\t: [ 1 ,\n 2 ] , "a" :3\r\n}'
SPACE = " " * MAX_WHITESPACE
FULL = f'{{{SPACE}"b"{SPACE}:{SPACE}[1],"a":1{SPACE}}}'
TOO_WIDE = [FULL.replace("{", "{ "), FULL.replace("}", " }"), FULL.replace(":", " :", 1)]
ENDLESS = '{"b":[],"a":1' + "\n" * 300 + "}"
EMPTY_ENDLESS = '{"b":[' + "\n" * 300 + '],"a":1}'


@pytest.mark.parametrize(
    ("whitespace", "taken"),
    [
        (JsonWhitespace.COMPACT, [COMPACT]),
        (JsonWhitespace.SPACED, [SPACED]),
        (JsonWhitespace.BOUNDED, [COMPACT, SPACED, WIDE, FULL]),
        (
            JsonWhitespace.UNBOUNDED,
            [COMPACT, SPACED, WIDE, FULL, *TOO_WIDE, ENDLESS, EMPTY_ENDLESS],
        ),
    ],
)
def test_whitespace_follows_the_policy(whitespace: JsonWhitespace, taken: list[str]) -> None:
    grammar = schema_grammar(PAIR, whitespace)

    texts = [COMPACT, SPACED, WIDE, FULL, *TOO_WIDE, ENDLESS, EMPTY_ENDLESS]
    assert accepted(grammar, *texts) == taken


def test_nothing_stands_before_or_after_the_text() -> None:
    grammar = schema_grammar(PAIR)

    assert accepted(grammar, f" {COMPACT}", f"{COMPACT} ", f"{COMPACT}\n", f"{COMPACT}{{}}") == []


def test_keys_come_in_the_order_of_the_schema_as_it_was_written() -> None:
    grammar = schema_grammar('{"properties":{"z":{"type":"null"},"a":true},"required":["a","m"]}')

    taken = accepted(
        grammar,
        '{"z":null,"a":1,"m":2}',
        '{"a":1,"m":2}',
        '{"a":1,"z":null,"m":2}',
        '{"m":2,"a":1}',
    )
    assert taken == ['{"z":null,"a":1,"m":2}', '{"a":1,"m":2}']


def test_keys_of_all_of_come_where_it_stands() -> None:
    before = schema_grammar(
        '{"allOf":[{"properties":{"b":{"type":"null"}}}],"type":"object",'
        '"properties":{"a":{"type":"null"}},"required":["a","b"]}'
    )
    after = schema_grammar(
        '{"type":"object","properties":{"a":{"type":"null"}},"required":["a","b"],'
        '"allOf":[{"properties":{"b":{"type":"null"}}}]}'
    )

    texts = ('{"a":null,"b":null}', '{"b":null,"a":null}')
    assert accepted(before, *texts) == ['{"b":null,"a":null}']
    assert accepted(after, *texts) == ['{"a":null,"b":null}']


def test_a_declared_key_cannot_come_again_under_another_spelling() -> None:
    schema = {"properties": {"a": INTEGER}, "additionalProperties": {"type": "string"}}

    grammar = schema_grammar(schema)

    assert accepted(grammar, '{"a":1,"b":"x"}') == ['{"a":1,"b":"x"}']
    for text in ('{"a":"x"}', '{"\\u0061":"x"}', '{"a":1,"a":"x"}', '{"a":1,"\\u0061":"x"}'):
        assert accepted(grammar, text) == []


def test_strings_are_what_every_json_reader_takes() -> None:
    grammar = schema_grammar({"type": "string"})

    good = ['"é𝄞"', '"\\"\\\\\\n\\u0001\\u001f"', '"\x7f"']
    bad = ['"\\ud800"', '"\\ud83c\\udf88"', '"\n"', '"\\x41"', '"\\u0041"', '"\x00"', '"a']
    assert accepted(grammar, *good, *bad) == good


def test_numbers_are_what_every_json_reader_takes() -> None:
    grammar = schema_grammar({"type": "number"})

    good = ["0", "-1.5", "12e3", "1.5E-7", "1e+307", "1e300", "123456789012345678"]
    bad = ["01", "1.", ".5", "+1", "1E400", "1e308", "9" * 400, "-", "0x1", "1.5e", "NaN"]
    assert accepted(grammar, *good, *bad) == good


def test_a_string_has_one_spelling_so_that_a_complement_is_exact() -> None:
    grammar = schema_grammar({"type": "string", "not": {"const": "A\n"}})

    assert accepted(grammar, '"A\\n"', '"\\u0041\\n"', '"A\\u000a"', '"A"') == ['"A"']


def test_every_text_of_an_open_object_parses_to_what_was_checked() -> None:
    grammar = schema_grammar({"type": "object", "properties": {"n": INTEGER}, "required": ["n"]})

    text = '{"n": 1, "other": {"x": [true, null, "\\u0000"]}}'
    assert accepted(grammar, text) == [text]
    assert json.loads(text)["n"] == 1
