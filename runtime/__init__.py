"""radix-runtime: serve large language models with a KV cache that is one radix tree."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .lang.backends.default import set_default_backend
    from .lang.backends.openai_backend import OpenAIBackend
    from .lang.backends.runtime_endpoint import RuntimeEndpoint
    from .lang.branches import Branches, fork
    from .lang.choices import ChoicesMethod
    from .lang.generate import gen, gen_int, gen_string, select
    from .lang.program import Program, function
    from .lang.roles import assistant, system, tool_result, user
    from .lang.state import ProgramState
    from .lang.tools import ToolCall
    from .srt.engine import Engine

# Imported when first asked for, so that importing the package costs a child process or a tool
# nothing, and a program that talks to a server does not load what serves.
_HOMES = {
    "Engine": "srt.engine",
    "set_default_backend": "lang.backends.default",
    "OpenAIBackend": "lang.backends.openai_backend",
    "RuntimeEndpoint": "lang.backends.runtime_endpoint",
    "Branches": "lang.branches",
    "fork": "lang.branches",
    "ChoicesMethod": "lang.choices",
    "gen": "lang.generate",
    "gen_int": "lang.generate",
    "gen_string": "lang.generate",
    "select": "lang.generate",
    "Program": "lang.program",
    "function": "lang.program",
    "assistant": "lang.roles",
    "system": "lang.roles",
    "tool_result": "lang.roles",
    "user": "lang.roles",
    "ProgramState": "lang.state",
    "ToolCall": "lang.tools",
}

__all__ = [
    "Branches",
    "ChoicesMethod",
    "Engine",
    "OpenAIBackend",
    "Program",
    "ProgramState",
    "RuntimeEndpoint",
    "ToolCall",
    "assistant",
    "fork",
    "function",
    "gen",
    "gen_int",
    "gen_string",
    "select",
    "set_default_backend",
    "system",
    "tool_result",
    "user",
]


def __getattr__(name: str) -> Any:  # each name has a type of its own
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{home}"), name)
