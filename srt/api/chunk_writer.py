"""ChunkWriter: a chunk of a started answer goes to its connection at once, without waking a task.

The HTTP protocol offers one for each request in the scope's extensions. An answer may use it only
while it has nothing under way through send(): see Mailbox.is_awaited.
"""

from __future__ import annotations

from typing import Protocol, cast

from starlette.types import Scope

_EXTENSION = "runtime.chunk_writer"


class ChunkWriter(Protocol):
    """Writes to one answer."""

    @property
    def is_ready(self) -> bool:
        """Whether write() may be called: the answer has begun and the client keeps up with it."""
        ...

    def write(self, chunk: bytes) -> None:
        """Add chunk to the answer's body; it must not be empty."""
        ...


def offer_chunk_writer(scope: Scope, writer: ChunkWriter) -> None:
    """Make writer known to the routes."""
    scope.setdefault("extensions", {})[_EXTENSION] = writer


def chunk_writer_of(scope: Scope) -> ChunkWriter | None:
    """Return the writer of a request, None if its server offers none."""
    return cast("ChunkWriter | None", scope.get("extensions", {}).get(_EXTENSION))
