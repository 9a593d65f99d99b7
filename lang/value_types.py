"""Typed variables: what an output must look like for a type, and how its text becomes a value."""

from __future__ import annotations

import dataclasses
import json
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from .errors import InvalidOutput, ProgramError

MAX_PROBLEMS = 4  # of one output, that its error names


@dataclass(frozen=True, slots=True)
class ValueType:
    """A type of variable; read makes the value of a text, or raises ValueError."""

    name: str
    read: Callable[[str], Any]
    regex: str | None = None
    json_schema: str | None = None
    stop: tuple[str, ...] = ()

    def value(self, text: str, variable: str | None, finish: Any) -> Any:
        """The value of text; raises InvalidOutput, which says why and how the output ended."""
        try:
            return self.read(text)
        except ValueError as error:
            kind = finish.get("type") if isinstance(finish, Mapping) else finish
            hint = "; raise max_tokens" if kind == "length" else ""
            raise InvalidOutput(
                f"the output for {variable!r} is no {self.name}{_reason(error)}: {text[:80]!r} "
                f"(finish_reason {kind}){hint}"
            ) from error


TEXT = ValueType("text", lambda text: text)


def type_of_dtype(dtype: type) -> ValueType:
    """The type for dtype: int, float, bool or str; raises ProgramError for another."""
    found = _BY_DTYPE.get(dtype)
    if found is None:
        name = getattr(dtype, "__name__", repr(dtype))
        raise ProgramError(f"dtype is {name}; it must be int, float, bool or str")
    return found


def type_of_schema(schema: Any) -> ValueType:
    """The type for a JSON schema: a dict or its text, or what pydantic makes one of.

    That is a model, a dataclass, list[int], ... The variable of a dict or text stays
    text; that of a class is an instance of it. Raises ProgramError for anything else.
    """
    if isinstance(schema, str):
        try:
            json.loads(schema)
        except ValueError as error:
            raise ProgramError(f"json_schema is text that is no JSON: {error}") from None
        return ValueType("JSON", _checked_json, json_schema=schema)
    if isinstance(schema, Mapping):
        return ValueType("JSON", _checked_json, json_schema=json.dumps(schema))
    is_class = isinstance(schema, type) and (
        dataclasses.is_dataclass(schema) or hasattr(schema, "model_json_schema")
    )
    if is_class or typing.get_origin(schema) is not None:
        # Late: who never gives a class does not pay for pydantic.
        from pydantic import TypeAdapter
        from pydantic.errors import PydanticUserError

        name = schema.__name__ if is_class else str(schema)
        try:
            adapter = TypeAdapter(schema)
            text = json.dumps(adapter.json_schema())
        except PydanticUserError as error:
            reason = error.message.partition("\n")[0]
            raise ProgramError(f"json_schema is {name}, which has no schema: {reason}") from None
        return ValueType(name, adapter.validate_json, json_schema=text)
    raise ProgramError(
        f"json_schema is of type {type(schema).__name__}; it must be a dict, the JSON text of "
        "one, a pydantic model, a dataclass, or a type such as list[int]"
    )


def _reason(error: ValueError) -> str:
    """What is wrong with a JSON text, by field; of other texts the text itself shows it."""
    if isinstance(error, json.JSONDecodeError):
        return f" ({error})"
    if not hasattr(error, "errors"):
        return ""
    problems = [_problem(one) for one in error.errors(include_url=False, include_input=False)]
    more = len(problems) - MAX_PROBLEMS
    shown = "; ".join(problems[:MAX_PROBLEMS]) + (f"; {more} more" if more > 0 else "")
    return f" ({shown})"


def _problem(found: Mapping[str, Any]) -> str:
    """One entry of pydantic's list: the path of the field, if there is one, and what is wrong."""
    place = ".".join(str(one) for one in found["loc"])
    return f"{place}: {found['msg']}" if place else str(found["msg"])


def _checked_json(text: str) -> str:
    json.loads(text)
    return text


def _read_string(text: str) -> str:
    value = json.loads(text)
    if not isinstance(value, str):
        raise ValueError("no string")
    return value


def _read_bool(text: str) -> bool:
    if text not in ("True", "False"):
        raise ValueError("neither True nor False")
    return text == "True"


# A number may be followed by what ends a word: a model that is done writes that sooner than its end
# token, and the stop cuts it off. 18 digits fit what other programs take as an integer.
_ENDS = (" ", "\n")
_BY_DTYPE = {
    int: ValueType("int", int, regex=r"[-+]?[0-9]{1,18}[ \n]?", stop=_ENDS),
    float: ValueType("float", float, regex=r"[-+]?[0-9]{1,18}(\.[0-9]{1,18})?[ \n]?", stop=_ENDS),
    bool: ValueType("bool", _read_bool, regex=r"(True|False)"),
    str: ValueType("string", _read_string, regex=r'"([^"\\\x00-\x1f]|\\["\\/bfnrt])*"'),
}
