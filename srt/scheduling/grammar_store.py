"""CompiledGrammars: compiles in a thread beside the steps and keeps what was compiled.

The thread runs at low priority, so that a compile takes little from steps that run meanwhile. What
comes here has compiled once already, in the grammar worker and within its time.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property

from runtime.grammars.compile import compile_grammar
from runtime.grammars.matcher import Grammar
from runtime.grammars.vocabulary import Vocabulary

from ..messages import GrammarSource

_NICENESS = 10


class CompiledGrammars:
    """A GrammarStore of at most max_bytes, the least recently used going first.

    The newest is kept whatever its size: all who wait for it take it from here.

    announce is called, from any thread, with the key of a grammar that is now compiled or failed.
    load_vocabulary is called with the first grammar, in the thread.
    """

    def __init__(
        self,
        load_vocabulary: Callable[[], Vocabulary],
        max_bytes: int,
        announce: Callable[[str], None],
    ) -> None:
        self._load_vocabulary = load_vocabulary
        self._max_bytes = max_bytes
        self._announce = announce
        self._kept: OrderedDict[str, Grammar] = OrderedDict()
        self._num_bytes = 0
        self._compiling: dict[str, Future[Grammar]] = {}
        self._thread = ThreadPoolExecutor(1, "grammars", initializer=_yield_to_others)

    def find(self, source: GrammarSource) -> Grammar | None:
        """See GrammarStore.find."""
        key = source.key
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key]
        future = self._compiling.get(key)
        if future is None:
            future = self._compiling[key] = self._thread.submit(self._compile, source)
            future.add_done_callback(lambda done: self._announce(key))
            return None
        if not future.done():
            return None
        del self._compiling[key]
        grammar = future.result()
        self._keep(key, grammar)
        return grammar

    def _compile(self, source: GrammarSource) -> Grammar:
        return compile_grammar(source.prepared, self._vocabulary)

    @cached_property
    def _vocabulary(self) -> Vocabulary:
        return self._load_vocabulary()

    def _keep(self, key: str, grammar: Grammar) -> None:
        self._kept[key] = grammar
        self._num_bytes += grammar.num_bytes
        while self._num_bytes > self._max_bytes and len(self._kept) > 1:
            _, oldest = self._kept.popitem(last=False)
            self._num_bytes -= oldest.num_bytes


def _yield_to_others() -> None:
    # On Linux each thread has a niceness of its own.
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
