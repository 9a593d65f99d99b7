"""Grammars that cost too much to follow: an error or a long way, never a dead or stalled loop."""

from __future__ import annotations

import time

import numpy as np
import pytest
from support.bundled_tokenizer import bundled_vocabulary

from runtime.grammars.compile import compile_grammar
from runtime.grammars.matcher import GrammarError
from runtime.grammars.prepare import prepare
from runtime.grammars.spec import GrammarKind, GrammarSpec
from runtime.srt.scheduling.grammar_rows import GrammarState


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (GrammarKind.REGEX, "((a{1,30}){1,30}){1,30}"),
        (GrammarKind.REGEX, "(((a{1,100}){1,100}){1,100}){1,100}"),
        (GrammarKind.REGEX, "(.*a.{100}){10}"),
        (GrammarKind.LARK, 'start: "a" | start start start'),
        (GrammarKind.EBNF, "root ::= (([a-z]{1,100}){1,100}){1,100}"),
    ],
)
def test_request_goes_on_or_ends_with_an_error_of_its_own(kind: GrammarKind, text: str) -> None:
    vocabulary = bundled_vocabulary()
    grammar = compile_grammar(prepare(GrammarSpec(kind, text)), vocabulary)
    state = GrammarState(grammar, vocabulary.size, jumps=True)
    token_id = vocabulary.encode("a")[0]
    mask = np.zeros(vocabulary.bitmask_words, np.uint32)
    num_left = 24
    slowest = 0.0

    try:
        while num_left > 0 and not state.matcher.is_finished:
            began = time.thread_time()
            try:
                state.matcher.fill(mask)
            except GrammarError:
                if not state.renewed_mask(mask):
                    raise
            legal = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
            chosen = token_id if token_id in legal else int(legal[0])
            outcome = state.take(chosen, num_left)
            num_left -= 1 + len(outcome.forced)
            slowest = max(slowest, time.thread_time() - began)
    except GrammarError as error:
        assert str(error)

    assert slowest < 1.0
