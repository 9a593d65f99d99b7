"""Requests whose grammar is being compiled: they wait here, and join the queue when it is there."""

from __future__ import annotations

from typing import Protocol

from runtime.grammars.matcher import Grammar

from ..messages import GrammarSource
from .grammar_rows import GrammarState
from .request import Request


class GrammarStore(Protocol):
    """Compiled grammars of one process."""

    def find(self, source: GrammarSource) -> Grammar | None:
        """Return the grammar; None if it is not ready: a GrammarReady with its key comes then.

        Raises GrammarError if it does not compile.
        """
        ...


class NoGrammars:
    """The store of a scheduler that was built without a vocabulary."""

    def find(self, source: GrammarSource) -> Grammar | None:
        """Never called: such a scheduler is sent no grammars."""
        raise AssertionError(f"no store for grammar {source.key}")


class CompilingRequests:
    """Gives requests their place in a grammar, and holds those that have to wait for it."""

    def __init__(self, store: GrammarStore, vocab_size: int, *, jumps: bool) -> None:
        self._store = store
        self._vocab_size = vocab_size
        self._jumps = jumps
        self._by_key: dict[str, list[Request]] = {}

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
        # Log-probabilities are of drawn tokens: where they are asked for every token is drawn.
        jumps = self._jumps and request.message.logprobs is None
        request.grammar = GrammarState(grammar, self._vocab_size, jumps=jumps)
        return True

    def take_ready(self, key: str) -> list[Request]:
        """Return and forget the requests that wait for the grammar with this key."""
        return self._by_key.pop(key, [])

    def remove(self, request: Request) -> None:
        """Forget a request that ends before its grammar is there, if it waits here."""
        source = request.message.grammar
        if source is not None and request in (waiting := self._by_key.get(source.key, [])):
            waiting.remove(request)
