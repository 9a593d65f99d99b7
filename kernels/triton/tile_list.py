"""One flat list of tiles over runs of different length: which run a tile belongs to.

A run is a request's new tokens, or a group's rows; each of its elements takes per_element rows of a
tile of BLOCK_M rows. Run i starts at tile cu_lens[i] * per_element // BLOCK_M + i: never before the
run in front of it ends, and num_tiles is enough for all, so the host need not know single lengths.
"""

from __future__ import annotations

import triton
import triton.language as tl


def num_tiles(num_elements: int, num_runs: int, per_element: int, block_m: int) -> int:
    """Length of the list; some tiles of it are past the end of their run."""
    return num_elements * per_element // block_m + num_runs


@triton.jit
def first_tile_of(cu_len, run, PER_ELEMENT: tl.constexpr, BLOCK_M: tl.constexpr):
    """The tile at which run starts, for cu_len = cu_lens[run]."""
    return cu_len * PER_ELEMENT // BLOCK_M + run


@triton.jit
def run_of_tile(
    cu_lens,
    num_runs,
    tile,
    PER_ELEMENT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_RUNS: tl.constexpr,
):
    """The last run that starts at tile or before it."""
    num_started = 0
    for first in range(0, num_runs, BLOCK_RUNS):
        runs = first + tl.arange(0, BLOCK_RUNS)
        is_run = runs < num_runs
        cu_len = tl.load(cu_lens + runs, mask=is_run, other=0)
        has_started = is_run & (first_tile_of(cu_len, runs, PER_ELEMENT, BLOCK_M) <= tile)
        num_started += tl.sum(has_started.to(tl.int32), 0)
    return num_started - 1
