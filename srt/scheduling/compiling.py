"""Requests whose grammar is being compiled: they wait here, and join the queue when it is there."""

from __future__ import annotations

import math
from typing import Protocol

from runtime.grammars.matcher import Grammar

from ..messages import GrammarSource
from .grammar_rows import GrammarState
from .request import Request

WARM_UP_AFTER_SECONDS = 0.5  # without a request: a start and its first requests come first
_LONGEST_REST_SECONDS = 1.2  # between two calls of rest; after more there was work in between


class GrammarStore(Protocol):
    """Compiled grammars of one process."""

    def find(self, source: GrammarSource) -> Grammar | None:
        """Return the grammar; None if it is not ready: a GrammarReady with its key comes then.

        Raises GrammarError if it does not compile.
        """
        ...

    def warm_up(self) -> None:
        """Make what all grammars need, beside whoever calls; after the first call, nothing."""
        ...


class NoGrammars:
    """The store of a scheduler that was built without a vocabulary."""

    def find(self, source: GrammarSource) -> Grammar | None:
        """Never called: such a scheduler is sent no grammars."""
        raise AssertionError(f"no store for grammar {source.key}")

    def warm_up(self) -> None:
        """There is nothing to make."""


class CompilingRequests:
    """Gives requests their place in a grammar, and holds those that have to wait for it."""

    def __init__(self, store: GrammarStore, vocab_size: int, *, jumps: bool) -> None:
        self._store = store
        self._vocab_size = vocab_size
        self._jumps = jumps
        self._by_key: dict[str, list[Request]] = {}
        self._resting_since = self._rested_at = -math.inf

    def __len__(self) -> int:
        return sum(map(len, self._by_key.values()))

    def attach(self, request: Request) -> bool:
        """Set request.grammar; False if request waits here instead. Raises GrammarError."""
        source = request.message.grammar
        assert source is not None, f"request {request.rid} follows no grammar"
        grammar = self._store.find(source)
        if grammar is None:
            self._by_key.setdefault(source.key, []).append(request)
            return False
        # Forced tokens get their log-probabilities in the step that computes them: the last token
        # of an answer must then be a drawn one, as no step comes after it.
        draws_last = request.message.logprobs is not None
        request.grammar = GrammarState(
            grammar, self._vocab_size, jumps=self._jumps, draws_last=draws_last
        )
        return True

    def rest(self, now: float) -> None:
        """Told every now and then while no request is open: time to make what grammars need."""
        if now - self._rested_at > _LONGEST_REST_SECONDS:
            self._resting_since = now
        self._rested_at = now
        if now - self._resting_since > WARM_UP_AFTER_SECONDS:
            self._store.warm_up()

    def take_ready(self, key: str) -> list[Request]:
        """Return and forget the requests that wait for the grammar with this key."""
        return self._by_key.pop(key, [])

    def remove(self, request: Request) -> None:
        """Forget a request that ends before its grammar is there, if it waits here."""
        source = request.message.grammar
        if source is not None and request in (waiting := self._by_key.get(source.key, [])):
            waiting.remove(request)
