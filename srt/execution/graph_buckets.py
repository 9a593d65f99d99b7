"""Which batch sizes are captured as graphs: a step of other size is padded to the next one."""

from __future__ import annotations

from bisect import bisect_left

_SMALL = (1, 2, 4, 8)
_FINE_UNTIL, _FINE_STEP, _COARSE_STEP = 256, 8, 16


def bucket_sizes(max_rows: int) -> list[int]:
    """Rising sizes up to max_rows: 1, 2, 4, 8, then steps of 8 to 256, then of 16.

    The last is max_rows itself, so that no size up to it is left out.
    """
    assert max_rows > 0, f"graphs of up to {max_rows} rows"
    sizes = [size for size in _SMALL if size < max_rows]
    size = _SMALL[-1]
    while size < max_rows:
        size += _FINE_STEP if size < _FINE_UNTIL else _COARSE_STEP
        if size < max_rows:
            sizes.append(size)
    return [*sizes, max_rows]


def shared_bucket_sizes(max_rows: int) -> list[int]:
    """The rising sizes for steps that read shared prefixes once: 8, 16, 32, ... and max_rows.

    Such steps are few, and each size costs a capture: so a row of padding is the cheaper side. A
    single row shares with nobody.
    """
    if max_rows == 1:
        return []
    sizes = [max_rows]
    size = _SMALL[-1]
    while size < max_rows:
        sizes.insert(-1, size)
        size *= 2
    return sizes


def bucket_for(num_rows: int, sizes: list[int]) -> int | None:
    """The smallest of the rising sizes that holds num_rows; None above the largest."""
    place = bisect_left(sizes, num_rows)
    return sizes[place] if place < len(sizes) else None
