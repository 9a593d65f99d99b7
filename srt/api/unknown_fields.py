"""Fields that a route does not know: one that was to constrain the output is refused, by name.

Clients of all kinds send fields of their own, so most of what is unknown is ignored. A misspelt
constraint is not: its answer would be free, and taken for one that follows. sampling_params takes
no unknown field at all.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from ..errors import BadRequest, did_you_mean
from .grammar_fields import GRAMMAR_FIELDS, NATIVE_GRAMMAR_FIELDS, WHITESPACE_REMEDY

MAX_UNKNOWN_FIELDS = 100  # comparing one with the names takes up to 0.2 ms
_MAX_COMPARED_CHARACTERS = 40  # longer than what could pass for any of the names
_LIKENESS = 0.76  # of difflib: takes "choises" for choice, and leaves "voice" alone
_MAX_SHOWN_CHARACTERS = 40

_CHAT_CONSTRAINTS = ("tools", "tool_choice")
_SAMPLING = "sampling_params"
# What other servers, and clients that write bodies by hand, call the same thing.
_OTHER_NAMES = {
    "grammar": "ebnf",
    "json": "json_schema",
    "schema": "json_schema",
    "response_schema": "json_schema",
    "output_schema": "json_schema",
    "json_mode": "response_format",
    "json_object": "response_format",
}
_REPLACED = dict.fromkeys(("guided_whitespace_pattern", "whitespace_pattern"), WHITESPACE_REMEDY)
_GUIDED = "guided_"
_HARMLESS = frozenset({"guided_decoding_backend"})  # says who enforces, not what


def refuse_lost_constraints(unknown: Mapping[str, Any], known: Iterable[str]) -> None:
    """Raise BadRequest for a field of an OpenAI body that looks like a constraint it takes.

    unknown: the fields that the body's route, which knows the names known, does not.
    """
    given = _given(unknown)
    if not given:
        return
    known = frozenset(known)
    names = tuple(name for name in (*GRAMMAR_FIELDS, *_CHAT_CONSTRAINTS) if name in known)
    for name in given:
        if name in ("extra_body", _SAMPLING) or _holds_guided(unknown[name]):
            raise _refused(name, "send the fields in it as fields of the body itself")
        if (remedy := _REPLACED.get(name)) is not None:
            raise _refused(name, remedy)
        meant = _constraint_like(name, names)
        if name == "format" and (unknown[name] == "json" or isinstance(unknown[name], Mapping)):
            meant = "response_format"
        if meant is not None:
            raise _refused(name, f"did you mean {meant}?")
        if name.startswith(_GUIDED) and name not in _HARMLESS:
            raise _refused(name, f"what constrains the output is one of {', '.join(names)}")


def refuse_misplaced_constraints(unknown: Mapping[str, Any]) -> None:
    """Raise BadRequest for a field beside sampling_params that looks like one of its constraints.

    unknown: the fields of a native body that its route does not know.
    """
    for name in _given(unknown):
        meant = _constraint_like(name, (*GRAMMAR_FIELDS, _SAMPLING))
        if meant == _SAMPLING:
            raise _refused(name, f"did you mean {_SAMPLING}?")
        if meant is not None:
            names = ", ".join(NATIVE_GRAMMAR_FIELDS)
            raise _refused(name, f"what constrains the output stands in {_SAMPLING}: {names}")


def refuse_unknown_sampling(unknown: Mapping[str, Any], known: Iterable[str]) -> None:
    """Raise BadRequest for any unknown field of sampling_params that is set."""
    names = tuple(known)
    for name in _given(unknown):
        shown = name[:_MAX_SHOWN_CHARACTERS]
        meant = _constraint_like(name, NATIVE_GRAMMAR_FIELDS)
        remedy = did_you_mean(shown, names) if meant is None else f"; did you mean {meant}?"
        param = f"{_SAMPLING}.{shown}"
        takes = remedy or f"; it takes {', '.join(names)}"
        raise BadRequest(f"{param} is not known{takes}", param=param)


def refuse_lost_tool_fields(function: Mapping[str, Any], path: str) -> None:
    """Raise BadRequest for a field of a tool's function that was to be its parameters or strict."""
    names = ("parameters", "strict")
    own = {"name", "description", *names}
    for name in _given({key: one for key, one in function.items() if key not in own}):
        meant = "parameters" if name == "input_schema" else _like(name, names)
        if meant is not None:
            shown = f"{path}.{name[:_MAX_SHOWN_CHARACTERS]}"
            raise _refused(shown, f"did you mean {meant}?")


def _holds_guided(value: Any) -> bool:
    """Whether value is an object with constraints in it, as nvext is of some clients."""
    return isinstance(value, Mapping) and any(one.startswith(_GUIDED) for one in value)


def _given(unknown: Mapping[str, Any]) -> list[str]:
    """The names of the fields that are set; unset ones are sent as defaults. Raises BadRequest."""
    names = [name for name, value in unknown.items() if value not in (None, False, "", [], {})]
    if len(names) > MAX_UNKNOWN_FIELDS:
        raise BadRequest(
            f"the body has {len(names)} fields in one object that are not known, the first being "
            f"{names[0][:_MAX_SHOWN_CHARACTERS]!r}; at most {MAX_UNKNOWN_FIELDS} are taken"
        )
    return names


def _constraint_like(name: str, names: tuple[str, ...]) -> str | None:
    """Which of names is meant by name, which may be one of them; None: none of them."""
    if name in _HARMLESS:
        return None
    plain = name.removeprefix(_GUIDED)
    for one in (name, _OTHER_NAMES.get(plain, plain)):
        if (found := _like(one, names)) is not None:
            return found
    return None


@lru_cache(maxsize=1024)
def _like(name: str, names: tuple[str, ...]) -> str | None:
    """Which of names looks like name, whatever its case and separators."""
    if len(name) > _MAX_COMPARED_CHARACTERS:
        return None
    plain = {_plain(one): one for one in names}
    given = _plain(name)
    close = difflib.get_close_matches(given, plain, 1, _LIKENESS)
    swapped = (one for one in plain if sorted(one) == sorted(given))  # letters in another order
    found = next(iter(close), None) or next(swapped, None)
    return None if found is None else plain[found]


def _plain(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")


def _refused(name: str, remedy: str) -> BadRequest:
    shown = name if name.startswith("tools.") else name[:_MAX_SHOWN_CHARACTERS]
    return BadRequest(f"{shown} is not a field of this request; {remedy}", param=shown)
