"""Stop strings and patterns: what is found, what is held back, and what a bad pattern may cost."""

from __future__ import annotations

import time

import pytest
from support import tiny_tokenizers

from runtime.srt.errors import ServingError
from runtime.srt.messages import DecodeOptions, FinishReason
from runtime.srt.sampling_params import SamplingParams
from runtime.srt.tokenization.stop_checker import StopChecker
from runtime.srt.tokenization.stop_match import StopMatch, StopMatcher, StopRegexTimeout
from runtime.srt.tokenization.text_assembler import TextAssembler

CATASTROPHIC = r"(?:a|aa)+[xyz]"


def test_the_match_that_begins_first_wins_and_the_shorter_on_a_tie() -> None:
    matcher = StopMatcher(["cd", "bcde", "bcd"], [r"c\w"])

    assert matcher.find("abcde") == StopMatch("bcd", 1, 4)


def test_matches_that_end_before_the_new_text_do_not_count() -> None:
    matcher = StopMatcher(["ab"], [r"\d+"])

    assert matcher.find("ab 12 ", start=5) is None
    assert matcher.find("ab 12 ab", start=7) == StopMatch("ab", 6, 8)
    assert matcher.find("ab 12", start=4) == StopMatch(r"\d+", 3, 5)


@pytest.mark.parametrize(
    ("stop", "patterns", "text", "held"),
    [
        (["END"], [], "the EN", 2),
        (["END"], [], "the END", 0),
        (["aab"], [], "aaa", 2),
        (["xyz", "yzzz"], [], "..xy", 2),
        ([], [r"\d+\."], "a 12", 2),
        ([], [r"foo(?=bar)"], "x foob", 4),
        ([], [r"stop|end"], "the e", 1),
        ([], ["a.*b"], "xa123", 4),
        (["12"], [r"1\d3"], "x1", 1),
    ],
)
def test_held_back_is_what_may_begin_a_stop(
    stop: list[str], patterns: list[str], text: str, held: int
) -> None:
    assert StopMatcher(stop, patterns).held_back(text) == held


def test_a_pattern_without_end_fails_with_its_own_error_in_bounded_time() -> None:
    matcher = StopMatcher([], [CATASTROPHIC])
    began = time.thread_time()

    with pytest.raises(StopRegexTimeout, match="takes too long") as caught:
        matcher.find("a" * 60)

    assert isinstance(caught.value, ServingError)
    assert time.thread_time() - began < 2.0


def test_a_pattern_that_is_slow_on_every_token_fails_too() -> None:
    checker = StopChecker(tiny_tokenizers.byte_level(), SamplingParams(stop_regex=(CATASTROPHIC,)))
    token_id = tiny_tokenizers.byte_level().encode("a")[0]

    with pytest.raises(StopRegexTimeout):
        for _ in range(60):
            checker.push(token_id, may_stop=True)


def test_a_stop_across_tokens_is_found_with_offsets_in_the_output() -> None:
    tokenizer = tiny_tokenizers.byte_level()
    checker = StopChecker(tokenizer, SamplingParams(stop=("dog;",)))
    ids = tokenizer.encode("x" * 500 + "\U0001f600 do") + tokenizer.encode("g; more")

    found = [match for i in ids if (match := checker.push(i, True)) is not None]

    assert found[0] == StopMatch("dog;", 502, 506)


def test_stops_before_the_minimum_do_not_count_but_may_reach_over_it() -> None:
    tokenizer = tiny_tokenizers.byte_level()
    ids = [tokenizer.encode(char)[0] for char in "abab"]

    checker = StopChecker(tokenizer, SamplingParams(stop=("ab",)))
    assert [checker.push(i, n >= 3) for n, i in enumerate(ids)][3] == StopMatch("ab", 2, 4)
    checker = StopChecker(tokenizer, SamplingParams(stop=("ab",)))
    assert [checker.push(i, n >= 1) for n, i in enumerate(ids)][1] == StopMatch("ab", 0, 2)


def test_a_pattern_that_looks_ahead_stops_when_it_is_certain() -> None:
    tokenizer = tiny_tokenizers.byte_level()
    checker = StopChecker(tokenizer, SamplingParams(stop_regex=("a(?=bc)",)))
    ids = [tokenizer.encode(char)[0] for char in "xabc"]

    assert [checker.push(i, True) for i in ids] == [None, None, None, StopMatch("a(?=bc)", 1, 2)]


def test_text_is_emitted_up_to_the_possible_beginning_of_a_stop() -> None:
    tokenizer = tiny_tokenizers.byte_level()
    assembler = TextAssembler(tokenizer, DecodeOptions(stop=("###",)))

    assert assembler.push(tokenizer.encode("dog ##")) == "dog "
    assert assembler.push(tokenizer.encode("x #")) == "##x "
    finish = FinishReason(type="stop", matched="###", text_end=8)
    assert assembler.push(tokenizer.encode("##ox"), finish) == ""


def test_at_the_end_everything_held_is_flushed() -> None:
    tokenizer = tiny_tokenizers.byte_level()
    assembler = TextAssembler(tokenizer, DecodeOptions(stop=("###",)))
    first_bytes = tokenizer.encode("\u2603")[:1]

    text = assembler.push(tokenizer.encode("dog ##"))
    text += assembler.push(first_bytes, FinishReason(type="length"))

    assert text == "dog ##\ufffd"


@pytest.mark.parametrize(
    ("no_stop_trim", "skip", "expected"),
    [(False, True, "dog"), (False, False, "dog"), (True, True, "dog"), (True, False, "dog<|end|>")],
)
def test_the_stop_token_is_text_only_if_both_flags_say_so(
    no_stop_trim: bool, skip: bool, expected: str
) -> None:
    tokenizer = tiny_tokenizers.byte_level()
    options = DecodeOptions(no_stop_trim=no_stop_trim, skip_special_tokens=skip)
    ids = tokenizer.encode("dog<|end|>")

    text = TextAssembler(tokenizer, options).push(ids, FinishReason(type="stop", matched=ids[-1]))

    assert text == expected


def test_an_ordinary_stop_token_is_dropped_too() -> None:
    tokenizer = tiny_tokenizers.byte_level()
    ids = [tokenizer.encode("x")[0], tokenizer.encode("!")[0]]
    finish = FinishReason(type="stop", matched=ids[-1])

    assert TextAssembler(tokenizer, DecodeOptions()).push(ids, finish) == "x"
    kept = TextAssembler(tokenizer, DecodeOptions(no_stop_trim=True))
    assert kept.push(ids, finish) == "x!"
