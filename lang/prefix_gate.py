"""Computes what the prompts of a batch have in common once, before the first calls run.

The common prefix is that of the first two prompts, as they really are; no program has to be traced
with made-up arguments. Later prompts find it in the cache.
"""

from __future__ import annotations

import asyncio

from .backends.protocol import Backend
from .errors import BackendError
from .transcript import Prompt, shared_prefix

# Longest time that a first prompt waits for a second: a program may be busy with something else.
MAX_WAIT_SECONDS = 0.05


class PrefixGate:
    """Holds back first calls until the prefix is known and computed; for use on one loop."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._first: Prompt | None = None
        self._is_decided = False
        self._opened = asyncio.Event()

    async def pass_with(self, prompt: Prompt) -> None:
        """Return when the call for prompt may be made."""
        if self._opened.is_set():
            return
        if self._first is None:
            self._first = prompt
            asyncio.get_running_loop().call_later(MAX_WAIT_SECONDS, self._give_up)
        elif not self._is_decided:
            self._is_decided = True
            await self._commit(shared_prefix(self._first, prompt))
        await self._opened.wait()

    def _give_up(self) -> None:
        if not self._is_decided:
            self._is_decided = True
            self._opened.set()

    async def _commit(self, shared: Prompt | None) -> None:
        try:
            if shared is not None and self._backend.abilities.keeps_prefixes:
                await self._backend.commit(shared)
        except BackendError:
            pass  # the calls themselves meet the same error, and tell it
        finally:
            self._opened.set()
