"""Mailbox: a queue with one reader, for one event loop.

A request gets something at every step, so this is asyncio.Queue without limits, several readers and
task counts: it costs a third.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class Mailbox(Generic[T]):
    """What was put and not yet taken, in order."""

    __slots__ = ("_items", "_reader")

    def __init__(self) -> None:
        self._items: deque[T] = deque()
        self._reader: asyncio.Future[None] | None = None

    def __bool__(self) -> bool:
        """Whether something is there to take."""
        return bool(self._items)

    @property
    def is_awaited(self) -> bool:
        """Whether the reader has taken all there was and waits for more."""
        return self._reader is not None and not self._reader.done() and not self._items

    def put(self, item: T) -> None:
        """Add item and wake the reader."""
        self._items.append(item)
        reader = self._reader
        if reader is not None:
            self._reader = None
            if not reader.done():  # else it was cancelled
                reader.set_result(None)

    async def take(self) -> T:
        """Return the next item, waiting for it; only one task at a time may."""
        while not self._items:
            assert self._reader is None or self._reader.done(), "a mailbox has one reader"
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        return self._items.popleft()
