"""CompiledGrammars: compiles in a thread beside the steps and keeps what was compiled.

The thread runs at low priority and gives the interpreter back often, so that a compile takes little
from steps that run meanwhile. What comes here has compiled once already, in the grammar worker and
within its time. What an engine needs of the vocabulary takes tenths of a second, in which no other
thread can run: it is made ahead, while nothing is to be computed.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import cached_property

from runtime.grammars.closing_choices import closing_choices
from runtime.grammars.compile import compile_grammar, engine_for
from runtime.grammars.matcher import Grammar
from runtime.grammars.prepared import GrammarEngine
from runtime.grammars.vocabulary import Vocabulary

from ..errors import ServingError
from ..messages import GrammarSource

logger = logging.getLogger(__name__)

_NICENESS = 10
# What a step waits for the interpreter, each time that it needs it, while a compile runs in Python:
# 5 ms by default, several times a step.
_SWITCH_SECONDS = 0.0002
_USUAL_SWITCH_SECONDS = sys.getswitchinterval()


class CompiledGrammars:
    """A GrammarStore of at most max_bytes, the least recently used going first.

    The newest is kept whatever its size: all who wait for it take it from here.

    announce is called, from any thread, with the key of a grammar that is now compiled or failed.
    load_vocabulary is called in the thread, by warm_up or with the first grammar. engine is what
    most grammars are for.
    """

    def __init__(
        self,
        load_vocabulary: Callable[[], Vocabulary],
        max_bytes: int,
        announce: Callable[[str], None],
        engine: GrammarEngine = GrammarEngine.LLGUIDANCE,
    ) -> None:
        self._load_vocabulary = load_vocabulary
        self._max_bytes = max_bytes
        self._announce = announce
        self._engine = engine
        self._is_warm = False
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

    def warm_up(self) -> None:
        """See GrammarStore.warm_up."""
        if not self._is_warm:
            self._is_warm = True
            self._thread.submit(self._prepare_engine)

    def _compile(self, source: GrammarSource) -> Grammar:
        with _quick_to_yield():
            closing_choices(self._vocabulary)  # else made in the first step that needs them
            return compile_grammar(source.prepared, self._vocabulary)

    def _prepare_engine(self) -> None:
        with _quick_to_yield():
            try:
                engine_for(self._engine, self._vocabulary)
                closing_choices(self._vocabulary)
            except ServingError as error:  # a model without grammars: requests are told so
                logger.info("no grammars: %s", error.message)

    @cached_property
    def _vocabulary(self) -> Vocabulary:
        return self._load_vocabulary()

    def _keep(self, key: str, grammar: Grammar) -> None:
        self._kept[key] = grammar
        self._num_bytes += grammar.num_bytes
        while self._num_bytes > self._max_bytes and len(self._kept) > 1:
            _, oldest = self._kept.popitem(last=False)
            self._num_bytes -= oldest.num_bytes


@contextmanager
def _quick_to_yield() -> Iterator[None]:
    sys.setswitchinterval(_SWITCH_SECONDS)
    try:
        yield
    finally:
        sys.setswitchinterval(_USUAL_SWITCH_SECONDS)


def _yield_to_others() -> None:
    # On Linux each thread has a niceness of its own.
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
