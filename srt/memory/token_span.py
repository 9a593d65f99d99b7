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
_SMALL_WINDOW_BYTES = 128
_WINDOW_GROWTH = 4
_BITS_PER_TOKEN = 8 * BYTES_PER_TOKEN


def as_token_array(token_ids: TokenIds, start: int, stop: int) -> NDArray[np.int32]:
    """Return token_ids[start:stop] as int32, without a copy when token_ids is such an array."""
    part = token_ids[start:stop]
    if isinstance(part, list):
        return np.frombuffer(array("i", part), dtype=np.int32)  # 3x faster than asarray(list)
    return np.asarray(part, dtype=np.int32)


def common_prefix_bytes(span: bytes, query: bytes, offset: int) -> int:
    """Return how many leading bytes, in whole tokens, span shares with query[offset:].

    Gallops: windows grow while they are equal and shrink around the first difference, so the cost
    follows the shared length, not the span's.
    """
    end = min(len(span), len(query) - offset) // BYTES_PER_TOKEN * BYTES_PER_TOKEN
    at, window, is_growing = 0, _SMALL_WINDOW_BYTES, True
    while at < end:
        stop = min(at + window, end)
        piece = span[at:stop]
        if query.startswith(piece, offset + at):
            at = stop
            if is_growing:
                window *= _WINDOW_GROWTH
        elif stop - at <= _SMALL_WINDOW_BYTES:
            return at + _first_difference(piece, query[offset + at : offset + stop])
        else:
            is_growing = False
            window = max(window // _WINDOW_GROWTH, _SMALL_WINDOW_BYTES)
    return end


def _first_difference(left: bytes, right: bytes) -> int:
    """Return where the first different token of two unequal spans begins, in bytes."""
    # As little-endian numbers the first difference is the lowest bit set in their xor.
    differs = int.from_bytes(left, "little") ^ int.from_bytes(right, "little")
    lowest_bit = (differs & -differs).bit_length() - 1
    return lowest_bit // _BITS_PER_TOKEN * BYTES_PER_TOKEN
