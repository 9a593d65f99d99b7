"""CompiledGrammars over the byte vocabulary, with its own thread."""

from __future__ import annotations

import queue
import sys
import threading

import pytest
from support.api_client import wait_until
from support.byte_vocabulary import byte_vocabulary

from runtime.grammars.matcher import Grammar, GrammarError
from runtime.grammars.prepared import GrammarEngine, PreparedForm, PreparedGrammar
from runtime.grammars.spec import JsonWhitespace
from runtime.grammars.vocabulary import Vocabulary
from runtime.srt.messages import GrammarSource
from runtime.srt.scheduling.grammar_store import CompiledGrammars

USUAL_SWITCH_SECONDS = sys.getswitchinterval()


class Rig:
    def __init__(self, max_bytes: int = 2**30) -> None:
        self.announced: queue.Queue[str] = queue.Queue()
        self.may_load = threading.Event()
        self.may_load.set()
        self.num_loads = 0
        self.store = CompiledGrammars(self._vocabulary, max_bytes, self.announced.put)

    def _vocabulary(self) -> Vocabulary:
        assert self.may_load.wait(30)
        self.num_loads += 1
        self.switch_seconds_at_load = sys.getswitchinterval()
        return byte_vocabulary()

    def compiled(self, source: GrammarSource) -> Grammar:
        """Ask until the store announces the grammar."""
        found = self.store.find(source)
        if found is None:
            assert self.announced.get(timeout=30) == source.key
            found = self.store.find(source)
        assert found is not None
        return found


def regex(text: str) -> GrammarSource:
    prepared = PreparedGrammar(
        GrammarEngine.LLGUIDANCE, PreparedForm.REGEX, text, JsonWhitespace.COMPACT
    )
    return GrammarSource(text, prepared)


def test_grammar_is_announced_once_for_all_who_asked_and_then_at_hand() -> None:
    rig = Rig()
    rig.may_load.clear()

    assert rig.store.find(regex("ab")) is None
    assert rig.store.find(regex("ab")) is None
    rig.may_load.set()
    assert rig.announced.get(timeout=30) == "ab"
    first = rig.compiled(regex("ab"))

    assert rig.store.find(regex("ab")) is first
    assert rig.announced.empty()


def test_grammar_that_does_not_compile_raises_after_its_announcement() -> None:
    rig = Rig()
    assert rig.store.find(regex("(")) is None
    assert rig.announced.get(timeout=30) == "("
    with pytest.raises(GrammarError):
        rig.store.find(regex("("))


def test_least_recently_used_grammars_go_when_there_are_too_many_bytes() -> None:
    one = Rig().compiled(regex("a")).num_bytes
    rig = Rig(max_bytes=2 * one + one // 2)
    first = rig.compiled(regex("a"))
    rig.compiled(regex("b"))
    assert rig.compiled(regex("a")) is first
    rig.compiled(regex("c"))

    assert rig.compiled(regex("a")) is first
    assert rig.store.find(regex("b")) is None


def test_grammar_larger_than_the_bound_reaches_all_who_wait_for_it() -> None:
    rig = Rig(max_bytes=1)
    grammar = rig.compiled(regex("a"))
    assert rig.store.find(regex("a")) is grammar


def test_warm_up_loads_the_vocabulary_once_and_before_any_grammar() -> None:
    rig = Rig()
    rig.store.warm_up()
    rig.store.warm_up()
    rig.compiled(regex("a"))
    assert rig.num_loads == 1


def test_a_step_gets_the_interpreter_back_soon_while_a_grammar_compiles() -> None:
    rig = Rig()
    rig.compiled(regex("a"))
    assert rig.switch_seconds_at_load < USUAL_SWITCH_SECONDS / 10
    wait_until(lambda: sys.getswitchinterval() == USUAL_SWITCH_SECONDS, "the usual interval")
