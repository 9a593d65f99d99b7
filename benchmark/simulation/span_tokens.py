"""Token ids made from numbers, so that a trace need not spell its prompts out.

A span is an endless row of tokens that its number fixes: [span, 100] is a prefix of [span, 200],
and two spans differ from their first token on (but for one pair in two thousand million).
"""

from __future__ import annotations

import hashlib
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

EOS_TOKEN = 1  # stands in no span
MAX_SPAN = 2**62 - 1  # greater numbers are those of outputs
_OUTPUT_BIT = 1 << 63
_MASK = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15


@lru_cache(maxsize=1024)
def span_tokens(span: int, count: int) -> NDArray[np.int32]:
    """Return the first count tokens of span, read-only: they are kept for the next caller."""
    tokens = new_span_tokens(span, count)
    tokens.flags.writeable = False
    return tokens


def new_span_tokens(span: int, count: int) -> NDArray[np.int32]:
    """Return the first count tokens of span as a new array; all at least 2 and below 2**31."""
    # splitmix64: a counter, scrambled; wraps at 64 bits by design.
    x = np.arange(1, count + 1, dtype=np.uint64)
    x *= np.uint64(_GOLDEN)
    x += np.uint64(_scramble(span))
    x ^= x >> np.uint64(30)
    x *= np.uint64(0xBF58476D1CE4E5B9)
    x ^= x >> np.uint64(27)
    x *= np.uint64(0x94D049BB133111EB)
    return (x >> np.uint64(33)).astype(np.int32) | np.int32(2)


def output_span(request_id: str) -> int:
    """Return the span whose tokens a request answers with."""
    digest = hashlib.blake2b(request_id.encode("utf-8"), digest_size=8).digest()
    return int.from_bytes(digest, "big") | _OUTPUT_BIT


def _scramble(number: int) -> int:
    number = (number + _GOLDEN) & _MASK
    number = ((number ^ (number >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    number = ((number ^ (number >> 27)) * 0x94D049BB133111EB) & _MASK
    return number ^ (number >> 31)
