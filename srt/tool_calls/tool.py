"""What a request offers the model to call, checked and typed; knows nothing of HTTP."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any


@dataclass(frozen=True, slots=True)
class Tool:
    """One function.

    schema_text is the JSON schema of its arguments, keys in the order of the request. wire is the
    tool as the client sent it: what chat templates expect.
    """

    name: str
    schema_text: str
    wire: dict[str, Any]
    description: str | None = None
    strict: bool = False


class ChoiceMode(Enum):
    """What tool_choice says."""

    AUTO = "auto"  # the model may call or answer
    NONE = "none"
    REQUIRED = "required"  # at least one call
    NAMED = "named"  # exactly one call, of one function


@dataclass(frozen=True, slots=True)
class ToolUse:
    """The tools of one request and how they may be used; named is set for ChoiceMode.NAMED only."""

    tools: tuple[Tool, ...]
    mode: ChoiceMode = ChoiceMode.AUTO
    named: str | None = None
    parallel: bool = True

    @property
    def is_forced(self) -> bool:
        """Whether the answer must be a call."""
        return self.mode in (ChoiceMode.REQUIRED, ChoiceMode.NAMED)

    @property
    def callable_tools(self) -> tuple[Tool, ...]:
        """The tools that this answer may call."""
        if self.mode is ChoiceMode.NONE:
            return ()
        if self.mode is ChoiceMode.NAMED:
            return tuple(one for one in self.tools if one.name == self.named)
        return self.tools
