"""radix-runtime: serve large language models with a KV cache that is one radix tree."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .srt.engine import Engine

__all__ = ["Engine"]


def __getattr__(name: str) -> Any:  # each name has a type of its own
    # Late, so that importing the package costs a child process or a tool nothing.
    if name == "Engine":
        from .srt.engine import Engine

        return Engine
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
