"""Computes what the prompts of a batch have in common once, before the first calls run.

The common prefix is that of the first two prompts, as they really are; no program has to be traced
with made-up arguments. Later prompts find it in the cache, where it may be pinned for a time. A
single run has its first prompt pinned.
"""

from __future__ import annotations

import asyncio

from .backends.protocol import Backend
from .errors import BackendError, ProgramError, Unsupported
from .transcript import Prompt, shared_prefix

# Longest time that a first prompt waits for a second: a program may be busy with something else.
MAX_WAIT_SECONDS = 0.05


class PrefixGate:
    """Holds back first calls until the prefix is known and computed; for use on one loop.

    pin_seconds: keep it for so long. is_alone: there is one prompt, and it is the prefix. Raises
    Unsupported for a backend that cannot pin.
    """

    def __init__(
        self, backend: Backend, *, pin_seconds: float | None = None, is_alone: bool = False
    ) -> None:
        if pin_seconds is not None and pin_seconds <= 0:
            raise ProgramError(f"pin_prefix_seconds is {pin_seconds}; it must be above 0")
        if pin_seconds is not None and not backend.abilities.pins_prefixes:
            raise Unsupported(f"{backend.name} cannot pin, as pin_prefix_seconds asks")
        self._backend = backend
        self._pin_seconds = pin_seconds
        self._is_alone = is_alone
        self._first: Prompt | None = None
        self._is_decided = False
        self._opened = asyncio.Event()
        self._error: BackendError | None = None

    async def pass_with(self, prompt: Prompt) -> None:
        """Return when the call for prompt may be made; raises BackendError if a pin is refused."""
        if self._is_decided or (self._opened.is_set() and self._pin_seconds is None):
            pass
        elif self._is_alone:
            await self._keep(prompt)
        elif self._first is None:
            self._first = prompt
            asyncio.get_running_loop().call_later(MAX_WAIT_SECONDS, self._give_up)
        else:
            await self._keep(shared_prefix(self._first, prompt))
        await self._opened.wait()
        if self._error is not None:
            raise self._error

    def _give_up(self) -> None:
        if not self._is_decided:
            self._opened.set()  # for a pin a second prompt still decides, whenever it comes

    async def _keep(self, prefix: Prompt | None) -> None:
        self._is_decided = True
        try:
            if prefix is None:
                return
            if self._pin_seconds is not None:
                await self._backend.pin(prefix, self._pin_seconds)
            elif self._backend.abilities.keeps_prefixes:
                await self._backend.commit(prefix)
        except BackendError as error:
            # Without a pin the calls themselves meet the same error, and tell it.
            self._error = None if self._pin_seconds is None else error
        finally:
            self._opened.set()
