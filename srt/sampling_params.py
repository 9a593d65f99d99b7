"""Sampling parameters of one request: defaults, ranges and the checks at the edge.

The names and defaults are those of the native /generate route (docs/user-guide.md). Nothing behind
the edge checks them again: `checked` is the only door.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec
import regex

from .errors import BadRequest

MAX_STOP_STRINGS = 32
MAX_STOP_STRING_CHARS = 4096
MAX_STOP_REGEX_CHARS = 256
# Counted repeats are unrolled: 1,000 cost 1.5 ms and 50 KB in each process, 10,000 cost 7 MB.
MAX_STOP_REGEX_REPEATS = 1000
MAX_STOP_TOKEN_IDS = 1024
MAX_LOGIT_BIAS = 1024
MAX_SAMPLES = 128
MAX_COUNT = 2**31 - 1  # the engine counts in 32 bits
MAX_SEED = 2**63 - 1

_REPEAT = regex.compile(r"\{\s*([0-9]*)\s*(?:,\s*([0-9]*)\s*)?\}")


class SamplingParams(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """How one completion is drawn and when it stops.

    max_new_tokens None means "until the context is full". temperature 0 is greedy. top_k None means
    the whole vocabulary. sampling_seed None means a seed drawn by the server.
    """

    max_new_tokens: int | None = 128
    min_new_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    stop_regex: tuple[str, ...] = ()
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int | None = None
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    n: int = 1
    sampling_seed: int | None = None
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    no_stop_trim: bool = False
    stream_interval: int | None = None

    @property
    def is_greedy(self) -> bool:
        """Whether the arg-max is taken: no random draw can change the token."""
        return self.temperature < 1e-6 or self.top_k == 1

    @property
    def has_penalties(self) -> bool:
        """Whether logits depend on the tokens seen so far."""
        return (
            self.frequency_penalty != 0.0
            or self.presence_penalty != 0.0
            or self.repetition_penalty != 1.0
        )

    @property
    def needs_text_to_stop(self) -> bool:
        """Whether stopping depends on decoded text, not on token ids alone."""
        return bool(self.stop or self.stop_regex)


class LogprobOptions(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """Which log-probabilities a request asked for; always of the raw model distribution.

    prompt_start None: none for the prompt; else the first prompt position reported. num_top: how
    many of the most likely tokens per position. token_ids: further ids reported everywhere.
    """

    prompt_start: int | None = None
    num_top: int = 0
    token_ids: tuple[int, ...] = ()


def checked(params: SamplingParams, vocab_size: int) -> SamplingParams:
    """Return params unchanged if every field is in range for a vocabulary of vocab_size.

    Raises BadRequest naming the field, the value and the limit.
    """
    _check_range("temperature", params.temperature, 0.0, 1e6)
    _check_range("top_p", params.top_p, 0.0, 1.0, low_open=True)
    _check_range("min_p", params.min_p, 0.0, 1.0)
    _check_range("frequency_penalty", params.frequency_penalty, -2.0, 2.0)
    _check_range("presence_penalty", params.presence_penalty, -2.0, 2.0)
    _check_range("repetition_penalty", params.repetition_penalty, 0.0, 2.0, low_open=True)
    _check_count("n", params.n, 1, MAX_SAMPLES)
    if params.top_k is not None:
        _check_count("top_k", params.top_k, 1, MAX_COUNT)
    if params.max_new_tokens is not None:
        _check_count("max_new_tokens", params.max_new_tokens, 0, MAX_COUNT)
    _check_count("min_new_tokens", params.min_new_tokens, 0, MAX_COUNT)
    if params.max_new_tokens is not None and params.min_new_tokens > params.max_new_tokens:
        raise BadRequest(
            f"min_new_tokens is {params.min_new_tokens}, more than max_new_tokens "
            f"{params.max_new_tokens}; lower it",
            param="min_new_tokens",
        )
    if params.sampling_seed is not None:
        _check_count("sampling_seed", params.sampling_seed, -MAX_SEED - 1, MAX_SEED)
    if params.stream_interval is not None:
        _check_count("stream_interval", params.stream_interval, 1, MAX_COUNT)
    _check_stops(params)
    _check_token_ids(params, vocab_size)
    return params


def _check_range(
    name: str, value: float, low: float, high: float, *, low_open: bool = False
) -> None:
    below = value <= low if low_open else value < low
    if not math.isfinite(value) or below or value > high:
        bracket = "(" if low_open else "["
        raise BadRequest(
            f"{name} is {value}; it must be in {bracket}{low:g}, {high:g}]", param=name
        )


def _check_count(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise BadRequest(f"{name} is {value}; it must be from {low} to {high}", param=name)


def _check_length(name: str, values: Any, limit: int) -> None:
    if len(values) > limit:
        raise BadRequest(f"{name} has {len(values)} entries; at most {limit} are taken", param=name)


def _check_stops(params: SamplingParams) -> None:
    _check_length("stop", params.stop, MAX_STOP_STRINGS)
    for text in params.stop:
        if not text:
            raise BadRequest("stop contains an empty string; remove it", param="stop")
        if len(text) > MAX_STOP_STRING_CHARS:
            raise BadRequest(
                f"a stop string has {len(text)} characters; the limit is {MAX_STOP_STRING_CHARS}",
                param="stop",
            )
    _check_length("stop_regex", params.stop_regex, MAX_STOP_STRINGS)
    num_repeats = 0
    for pattern in params.stop_regex:
        if len(pattern) > MAX_STOP_REGEX_CHARS:
            raise BadRequest(
                f"a stop_regex has {len(pattern)} characters; the limit is {MAX_STOP_REGEX_CHARS}",
                param="stop_regex",
            )
        num_repeats += _most_repeats(pattern)
        if num_repeats > MAX_STOP_REGEX_REPEATS:
            raise BadRequest(
                f"stop_regex {pattern!r}: its counted repeats multiplied, added to those of the "
                f"patterns before it, make {num_repeats}; the limit is {MAX_STOP_REGEX_REPEATS}",
                param="stop_regex",
            )
        _check_pattern(pattern)


def _most_repeats(pattern: str) -> int:
    """Return the product of all counts in pattern: what it is if every repeat is nested."""
    counts = [(int(low or 0), int(high or 0)) for low, high in _REPEAT.findall(pattern)]
    return math.prod(max(1, *count) for count in counts)


def _check_pattern(pattern: str) -> None:
    try:
        compiled = regex.compile(pattern, cache_pattern=False)
        matches_nothing = compiled.match("", timeout=0.1) is not None
    except TimeoutError:
        raise BadRequest(
            f"stop_regex {pattern!r} finds no end on an empty text; does it call itself?",
            param="stop_regex",
        ) from None
    except (regex.error, RecursionError, MemoryError, OverflowError) as error:
        raise BadRequest(
            f"stop_regex {pattern!r} does not compile: {error}", param="stop_regex"
        ) from None
    if matches_nothing:
        raise BadRequest(
            f"stop_regex {pattern!r} matches the empty string, so it would stop at once; "
            "make it match at least one character",
            param="stop_regex",
        )


def _check_token_ids(params: SamplingParams, vocab_size: int) -> None:
    _check_length("stop_token_ids", params.stop_token_ids, MAX_STOP_TOKEN_IDS)
    for token_id in params.stop_token_ids:
        if not 0 <= token_id < vocab_size:
            raise BadRequest(
                f"stop_token_ids contains {token_id}; ids go from 0 to {vocab_size - 1}",
                param="stop_token_ids",
            )
    _check_length("logit_bias", params.logit_bias, MAX_LOGIT_BIAS)
    for token_id, bias in params.logit_bias:
        if not 0 <= token_id < vocab_size:
            raise BadRequest(
                f"logit_bias names token {token_id}; ids go from 0 to {vocab_size - 1}",
                param="logit_bias",
            )
        _check_range("logit_bias", bias, -100.0, 100.0)
