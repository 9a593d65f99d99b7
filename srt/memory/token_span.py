"""Token spans as bytes: the keys of the radix tree.

A span is the int32 image of its tokens. On bytes the two comparisons a tree needs are one C call
each: "does the query go on with this whole span" (startswith at an offset, no slice is made) and
the hash of a page. Only where a span and a query part company is a search needed.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

TokenIds = Sequence[int] | NDArray[np.int32]

BYTES_PER_TOKEN = 4
_FIRST_WINDOW_TOKENS = 64
_WINDOW_GROWTH = 8


def as_token_array(token_ids: TokenIds, start: int, stop: int) -> NDArray[np.int32]:
    """Return token_ids[start:stop] as int32, without a copy when token_ids is such an array."""
    part = token_ids[start:stop]
    if isinstance(part, list):
        return np.frombuffer(array("i", part), dtype=np.int32)  # 3x faster than asarray(list)
    return np.asarray(part, dtype=np.int32)


def common_prefix_bytes(span: bytes, query: bytes, offset: int) -> int:
    """Return how many leading bytes, in whole tokens, span shares with query[offset:].

    Looks at windows that grow, so the cost follows the shared length, not the span's.
    """
    num_tokens = min(len(span), len(query) - offset) // BYTES_PER_TOKEN
    left = np.frombuffer(span, np.int32, num_tokens)
    right = np.frombuffer(query, np.int32, num_tokens, offset)
    start, window = 0, _FIRST_WINDOW_TOKENS
    while start < num_tokens:
        differs = left[start : start + window] != right[start : start + window]
        first = int(differs.argmax())
        if differs[first]:
            return (start + first) * BYTES_PER_TOKEN
        start += window
        window *= _WINDOW_GROWTH
    return num_tokens * BYTES_PER_TOKEN
