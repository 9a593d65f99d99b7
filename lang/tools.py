"""Tools: what a gen offers the model to call, and the calls that come back."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from .errors import InvalidOutput, ProgramError

MODES = ("auto", "none", "required")


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that the model has written. arguments_text is JSON, not checked against the schema.

    function is the one that was offered, None where a dict was.
    """

    id: str
    name: str
    arguments_text: str
    function: Callable[..., Any] | None = field(default=None, compare=False)

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments by name; raises InvalidOutput where the text is no JSON object."""
        try:
            value = json.loads(self.arguments_text or "{}")
        except ValueError:
            value = None
        if not isinstance(value, dict):
            raise InvalidOutput(
                f"the arguments of the call of {self.name} are no JSON object: "
                f"{self.arguments_text[:80]!r}; the output may have been cut: raise max_tokens"
            )
        return value

    def run(self) -> Any:
        """Call the function with the arguments, read as its annotations say; return its result.

        That of an async function is to be awaited. Raises InvalidOutput for arguments that it does
        not take, and what it raises itself.
        """
        if self.function is None:
            raise ProgramError(
                f"the tool {self.name} was offered as a dict; there is no function to run"
            )
        arguments = self.arguments
        # Late: who offers no functions does not pay for pydantic.
        from pydantic import ValidationError, validate_call

        try:
            return validate_call(self.function)(**arguments)
        except ValidationError as error:
            if error.title != self.function.__name__:
                raise  # the function's own
            details = "; ".join(f"{one['loc'][-1]}: {one['msg']}" for one in error.errors())
            raise InvalidOutput(f"{self.name} does not take these arguments: {details}") from None

    def wire(self) -> dict[str, Any]:
        """The call in OpenAI's form."""
        function = {"name": self.name, "arguments": self.arguments_text}
        return {"id": self.id, "type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool in OpenAI's form, and the function that it stands for, if there is one."""

    name: str
    wire: Mapping[str, Any]
    function: Callable[..., Any] | None = None


@dataclass(frozen=True, slots=True)
class ToolOffer:
    """The tools of a gen. choice is a mode or a tool's name; None: the backend's default, auto."""

    tools: tuple[Tool, ...]
    choice: str | None = None
    parallel: bool | None = None

    def fields(self) -> dict[str, Any]:
        """The fields of a chat request that make the offer."""
        fields: dict[str, Any] = {"tools": [dict(one.wire) for one in self.tools]}
        if self.choice in MODES:
            fields["tool_choice"] = self.choice
        elif self.choice is not None:
            fields["tool_choice"] = {"type": "function", "function": {"name": self.choice}}
        if self.parallel is not None:
            fields["parallel_tool_calls"] = self.parallel
        return fields

    def with_function(self, call: ToolCall) -> ToolCall:
        """call with the function that was offered under its name."""
        functions = {one.name: one.function for one in self.tools}
        return replace(call, function=functions.get(call.name))


def tool_offer(
    tools: Sequence[Callable[..., Any] | Mapping[str, Any]],
    choice: str | None = None,
    parallel: bool | None = None,
) -> ToolOffer:
    """Read tools: functions with annotated parameters, or dicts in OpenAI's form.

    Raises ProgramError for what is neither, for a name that is given twice and a choice of none.
    """
    if isinstance(tools, str | Mapping) or not isinstance(tools, Sequence) or not tools:
        raise ProgramError("tools must be a list with at least one function or dict")
    read = tuple(_tool(one) for one in tools)
    names = [one.name for one in read]
    for name in names:
        if names.count(name) > 1:
            raise ProgramError(f"tools has two tools with the name {name!r}")
    if choice is not None and choice not in (*MODES, *names):
        known = ", ".join((*MODES, *names))
        raise ProgramError(f"tool_choice is {choice!r}; it must be one of {known}")
    return ToolOffer(read, choice, parallel)


def calls_of(wire: Sequence[Mapping[str, Any]] | None) -> tuple[ToolCall, ...]:
    """The calls of a message in OpenAI's form."""
    return tuple(
        ToolCall(one["id"], one["function"]["name"], one["function"]["arguments"])
        for one in wire or ()
    )


def _tool(given: Callable[..., Any] | Mapping[str, Any]) -> Tool:
    if isinstance(given, Mapping):
        function = given.get("function")
        name = function.get("name") if isinstance(function, Mapping) else None
        if given.get("type") != "function" or not isinstance(name, str):
            raise ProgramError(
                "a dict of tools must have OpenAI's form: {'type': 'function', 'function': "
                f"{{'name': ..., 'parameters': ...}}}}; it is {str(given)[:80]}"
            )
        return Tool(name, given)
    if not callable(given):
        kind = type(given).__name__
        raise ProgramError(f"a tool must be a function or a dict; one is of type {kind}")
    name = str(getattr(given, "__name__", ""))
    if not name.isidentifier():
        raise ProgramError(f"the tool {given!r} has no name; define it with def")
    wire: dict[str, Any] = {"name": name, "parameters": _parameters(given)}
    if doc := inspect.getdoc(given):
        wire["description"] = doc
    return Tool(name, {"type": "function", "function": wire}, given)


def _parameters(function: Callable[..., Any]) -> dict[str, Any]:
    # Late: as above.
    from pydantic import PydanticUserError, TypeAdapter

    for one in inspect.signature(function).parameters.values():
        if one.kind in (one.POSITIONAL_ONLY, one.VAR_POSITIONAL, one.VAR_KEYWORD):
            raise ProgramError(
                f"the tool {function.__name__} has the parameter {one}; a model calls by name, "
                "with the names that are written there"
            )
    try:
        annotated: Any = function  # which pydantic takes, but not as a type
        schema: dict[str, Any] = TypeAdapter(annotated).json_schema()
    except PydanticUserError as error:
        raise ProgramError(
            f"the parameters of the tool {function.__name__} have no JSON schema: {error}"
        ) from None
    return schema
