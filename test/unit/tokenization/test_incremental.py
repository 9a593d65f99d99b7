"""Streaming text: broken characters are held back, context and flags count."""

from __future__ import annotations

import time
from typing import Any

import pytest
from support import tiny_tokenizers

from runtime.srt.tokenization.incremental import PROMPT_TAIL_TOKENS, IncrementalDetokenizer
from runtime.srt.tokenization.tokenizer import Tokenizer


def ids_of_bytes(tokenizer: Tokenizer, data: bytes) -> list[int]:
    by_bytes = {tokenizer.token_bytes(i): i for i in range(tokenizer.vocab_size)}
    return [by_bytes[bytes([byte])] for byte in data]


@pytest.mark.parametrize("make", [tiny_tokenizers.byte_level, tiny_tokenizers.sentencepiece])
def test_a_character_appears_with_its_last_byte(make: Any) -> None:
    tokenizer = make()
    detokenizer = IncrementalDetokenizer(tokenizer)

    pieces = [detokenizer.push([i]) for i in ids_of_bytes(tokenizer, "a\U0001f600b".encode())]

    assert pieces == ["a", "", "", "", "\U0001f600", "b"]


def test_a_broken_sequence_becomes_a_replacement_as_soon_as_it_is_certain() -> None:
    tokenizer = tiny_tokenizers.byte_level()
    detokenizer = IncrementalDetokenizer(tokenizer)

    pieces = [detokenizer.push([i]) for i in ids_of_bytes(tokenizer, b"\xf0\x9fx\xe2")]

    assert pieces == ["", "", "\ufffdx", ""]
    assert detokenizer.finish() == "\ufffd"


@pytest.mark.parametrize("make", [tiny_tokenizers.byte_level, tiny_tokenizers.sentencepiece])
def test_a_character_that_the_prompt_began_is_completed(make: Any) -> None:
    tokenizer = make()
    ids = ids_of_bytes(tokenizer, "\U0001f600!".encode())

    detokenizer = IncrementalDetokenizer(tokenizer, prompt_tail=ids[:2])

    assert detokenizer.push(ids[2:]) == "\U0001f600!"


def test_a_leading_space_is_dropped_only_at_the_start_of_a_text() -> None:
    tokenizer = tiny_tokenizers.sentencepiece()
    the, dog = tokenizer.encode("the dog")[0], tokenizer.encode("dog")[-1]

    alone = IncrementalDetokenizer(tokenizer)
    after_prompt = IncrementalDetokenizer(tokenizer, prompt_tail=[dog])

    assert alone.push([the, the]) == "the the"
    assert after_prompt.push([the]) == " the"


def test_special_tokens_are_shown_only_if_asked_for() -> None:
    tokenizer = tiny_tokenizers.byte_level()
    ids = tokenizer.encode("ox<|end|>dog<think>")

    assert IncrementalDetokenizer(tokenizer).push(ids) == "oxdog<think>"
    shown = IncrementalDetokenizer(tokenizer, skip_special_tokens=False)
    assert shown.push(ids) == "ox<|end|>dog<think>"


def test_other_vocabularies_stream_too() -> None:
    tokenizer = tiny_tokenizers.words()
    ids = tokenizer.encode("a b \u6f22 stop [end] a")
    detokenizer = IncrementalDetokenizer(tokenizer)

    pieces = [detokenizer.push([i]) for i in ids] + [detokenizer.finish()]

    assert pieces == ["a", " b", " \u6f22", " stop", "", " a", ""]


def test_cost_per_token_does_not_grow_with_the_output() -> None:
    tokenizer = tiny_tokenizers.words()
    detokenizer = IncrementalDetokenizer(tokenizer)
    ids = tokenizer.encode("a b \u6f22 stop ") * 100

    def cost() -> float:
        began = time.thread_time()
        detokenizer.push(ids)
        return time.thread_time() - began

    early = min(cost() for _ in range(5))
    for _ in range(40):
        detokenizer.push(ids)
    late = min(cost() for _ in range(5))

    assert late < 4 * early


def test_the_prompt_tail_is_long_enough_for_any_character() -> None:
    assert len("\U0001f600".encode()) <= PROMPT_TAIL_TOKENS
