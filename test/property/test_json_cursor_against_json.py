"""The incremental JSON reader accepts what the json module accepts, and nothing else."""

from __future__ import annotations

import json
import random

from runtime.srt.tool_calls.json_cursor import JsonCursor

# Without control characters, which the reader writes as escapes where json refuses them.
_PARTS = [
    *("{", "}", "[", "]", ",", ":", '"', "\\", " ", "1", "0", "-", ".", "e", "+", "true", "null"),
    *("false", "fals", '"a"', '"a": ', '{"a": 1}', "[1, 2]", '"\\n"', '"\\u00e9"', '"\\u00', "é"),
]


def _random_json(random_: random.Random, depth: int = 3) -> object:
    kind = random_.randrange(6 if depth else 4)
    if kind == 0:
        return random_.choice([True, False, None])
    if kind == 1:
        return random_.choice([0, -1, 2.5, -1e-7, 10**25, 1.5e300])
    if kind in (2, 3):
        return "".join(random_.choice('a"\\é/\n {') for _ in range(random_.randrange(5)))
    if kind == 4:
        return [_random_json(random_, depth - 1) for _ in range(random_.randrange(4))]
    return {str(i) * i: _random_json(random_, depth - 1) for i in range(random_.randrange(4))}


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


def _read(text: str, random_: random.Random) -> tuple[JsonCursor, int, str]:
    """Read text in random chunks; return the reader, how far it came, and what it wrote."""
    cursor, place, written = JsonCursor(), 0, ""
    while place < len(text) and not cursor.is_complete and not cursor.is_broken:
        end = place + random_.randint(1, 4)
        taken = cursor.push(text[:end], place)
        place, written = taken.end, written + taken.text
    return cursor, place, written


def test_mutated_objects_are_complete_only_if_they_are_json() -> None:
    random_ = random.Random(1)
    num_valid = num_invalid = 0
    for _ in range(2000):
        text = json.dumps({"k": _random_json(random_)}, ensure_ascii=random_.random() < 0.5)
        for _ in range(random_.randrange(3)):
            place = random_.randrange(1, len(text))
            text = text[:place] + random_.choice([*_PARTS, ""]) + text[place + 1 :]

        cursor, place, written = _read(text, random_)

        is_whole = cursor.is_complete and not text[place:].strip()
        assert is_whole == _is_object(text), text
        assert written == text[:place]
        if cursor.is_complete:
            assert _is_object(written)
        num_valid += is_whole
        num_invalid += not is_whole
    assert num_valid > 500 and num_invalid > 500


def test_random_parts_never_make_the_reader_complete_what_is_no_json() -> None:
    random_ = random.Random(2)
    for _ in range(2000):
        text = "{" + "".join(random_.choice(_PARTS) for _ in range(random_.randrange(8)))

        cursor, _, written = _read(text, random_)

        if cursor.is_complete:
            assert _is_object(written), text
