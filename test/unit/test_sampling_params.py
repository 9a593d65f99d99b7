"""Checks of sampling parameters at the edge."""

from __future__ import annotations

import pytest

from runtime.srt.errors import BadRequest
from runtime.srt.sampling_params import SamplingParams, checked


@pytest.mark.parametrize(
    "pattern",
    [
        r"((a{100}){100}){100}",
        r"(a{1,500}b{3,500}){2,9}",
        r"(((a{99}){99}){99}){99}",
        r"(?:a{,20000})b",
        r"(?:a{ 3 , 20000 })",
    ],
)
def test_a_stop_regex_whose_repeats_would_exhaust_memory_is_refused(pattern: str) -> None:
    with pytest.raises(BadRequest, match="stop_regex") as caught:
        checked(SamplingParams(stop_regex=(pattern,)), 100)

    assert caught.value.param == "stop_regex" and "1000" in caught.value.message


def test_many_patterns_share_one_limit_of_repeats() -> None:
    patterns = tuple(rf"x{index}{{100}}" for index in range(32))

    assert checked(SamplingParams(stop_regex=patterns[:10]), 100)
    with pytest.raises(BadRequest, match="stop_regex"):
        checked(SamplingParams(stop_regex=patterns), 100)


@pytest.mark.parametrize("pattern", ["(?R)", "(?R)?", "(?:a|(?R))", "((?1)|b)"])
def test_a_stop_regex_that_calls_itself_without_end_is_refused(pattern: str) -> None:
    with pytest.raises(BadRequest, match="stop_regex"):
        checked(SamplingParams(stop_regex=(pattern,)), 100)


@pytest.mark.parametrize(
    "pattern", [r"\d{4}-\d{2}-\d{2}", r"\d{3,10}-\d{3,10}-\d{3,10}", r"x{2,}", r"[.!?]{1,3}\s"]
)
def test_ordinary_repeats_are_taken(pattern: str) -> None:
    params = SamplingParams(stop_regex=(pattern,))

    assert checked(params, 100) is params


@pytest.mark.parametrize("pattern", ["(", "[z-a]", "a{2,1}", "(?<n>", "\\", "(" * 200])
def test_a_stop_regex_that_does_not_compile_is_named(pattern: str) -> None:
    with pytest.raises(BadRequest, match="does not compile") as caught:
        checked(SamplingParams(stop_regex=(pattern,)), 100)

    assert caught.value.param == "stop_regex"


def test_a_stop_regex_that_matches_nothing_is_refused() -> None:
    with pytest.raises(BadRequest, match="empty string"):
        checked(SamplingParams(stop_regex=("a*",)), 100)
