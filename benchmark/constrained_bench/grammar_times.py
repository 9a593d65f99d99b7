"""What a grammar costs by itself: to check and compile, and for each token of a text.

Times of compiling are CPU time of the process, those of a token CPU time of the thread, so that
other programs' share of the core does not count.
"""

from __future__ import annotations

import time

import numpy as np

from runtime.grammars.spec import JsonWhitespace
from runtime.grammars.vocabulary import Vocabulary

from .figures import Section
from .walks import CompiledCases

# Reach on real schemas.
COMPILE_MS = {"p50": 2.0, "p99": 50.0}
FILL_US = {"p50": 15.0, "p99": 200.0, "max": 2_500.0}
JUMP_SHARES = {JsonWhitespace.BOUNDED: 0.30, JsonWhitespace.COMPACT: 0.45}
MAX_JUMP = 64  # tokens asked for at once


def compile_section(compiled: CompiledCases, about: str, *, is_sample: bool) -> Section:
    """What it takes to check, rewrite and compile the schemas that are served."""
    section = Section("compile", about)
    total = [a + b for a, b in zip(compiled.prepare_ms, compiled.compile_ms, strict=True)]
    section.add_spread("check, rewrite and compile", total, "ms", COMPILE_MS if is_sample else None)
    section.add_spread("check and rewrite", compiled.prepare_ms, "ms")
    section.add_spread("compile", compiled.compile_ms, "ms")
    section.add("schemas", compiled.num_cases, "")
    section.add("schemas served", len(compiled.grammars), "")
    return section


def token_section(
    compiled: CompiledCases, vocabulary: Vocabulary, about: str, *, is_sample: bool
) -> Section:
    """Masks and accepted tokens along all walks, the second time they are walked."""
    section = Section("tokens", about)
    fills: list[float] = []
    accepts: list[float] = []
    mask = np.zeros(vocabulary.bitmask_words, np.uint32)
    clock = time.thread_time_ns
    for is_timed in (False, True):
        for walk in compiled.walks:
            matcher = walk.grammar.matcher()
            for token_id in walk.token_ids:
                started = clock()
                matcher.fill(mask)
                filled = clock()
                matcher.accept([token_id])
                ended = clock()
                if is_timed:
                    fills.append((filled - started) / 1e3)
                    accepts.append((ended - filled) / 1e3)
    section.add_spread("mask fill", fills, "us", FILL_US if is_sample else None)
    section.add_spread("accept", accepts, "us")
    section.add("walks", len(compiled.walks), "")
    section.add("tokens", len(fills), "")
    section.add("valid values not written by any walk", compiled.num_values_refused, "")
    return section


def jump_section(compiled: CompiledCases, about: str, *, is_sample: bool) -> Section:
    """How many tokens of the walks are forced, where one is drawn before each jump, as served."""
    section = Section(f"jumps, whitespace {compiled.whitespace.value}", about)
    num_tokens = num_jumped = num_jumps = num_different = 0
    times: list[float] = []
    for walk in compiled.walks:
        matcher, ids, place = walk.grammar.matcher(), walk.token_ids, 0
        num_tokens += len(ids)
        while place < len(ids):
            matcher.accept(ids[place : place + 1])
            place += 1
            while place < len(ids):
                started = time.thread_time_ns()
                forced = matcher.forced_tokens(MAX_JUMP)
                times.append((time.thread_time_ns() - started) / 1e3)
                if not forced:
                    break
                num_jumps += 1
                if forced != ids[place : place + len(forced)]:
                    num_different += 1
                    break
                matcher.accept(forced)
                place += len(forced)
                num_jumped += len(forced)
    reach = JUMP_SHARES.get(compiled.whitespace) if is_sample else None
    section.add("share of tokens computed by jump", num_jumped / num_tokens, "", at_least=reach)
    section.add("jumps", num_jumps, "")
    section.add("jumps that differ from the tokenizer's", num_different, "", at_most=0)
    section.add("tokens", num_tokens, "")
    section.add_spread("asking for forced tokens", times, "us")
    return section
