"""Fills trees and times their operations, the trees in turn in blocks."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence

import numpy as np

from .trees import Call, TimedTree
from .workloads import Tokens

EVICTED_TOKENS = 512
BLOCK = 20  # operations of one tree in a row; with 1, each would find the caches of the other
MAX_EVICTIONS = 200  # the peer's cost tens of milliseconds each


def measure(
    trees: Sequence[TimedTree],
    make_sequences: Callable[[int, np.random.Generator], list[Tokens]],
    num_sequences: int,
    num_operations: int,
    seed: int,
) -> dict[str, float]:
    """Fill trees with num_sequences, then time num_operations of each kind in each of them.

    Ours is the first tree; its figures carry no prefix. Per kind: match what is there, match and
    read all slots, insert what is new, evict.
    """
    rng = np.random.default_rng(seed)
    sequences = make_sequences(num_sequences + num_operations, rng)
    kept, fresh = sequences[:num_sequences], sequences[num_sequences:]
    for tokens in kept:
        for tree in trees:
            tree.insert_call(tokens)()
    chosen = [kept[index] for index in rng.integers(0, len(kept), num_operations)]
    num_tokens = sum(len(tokens) for tokens in kept)
    num_evictions = min(MAX_EVICTIONS, num_operations, num_tokens // (8 * EVICTED_TOKENS))
    figures: dict[str, float] = {"sequences": len(kept)}
    gc.collect()
    gc.freeze()  # what the trees hold now is not walked by collections during the timing
    _time(figures, "match", trees, lambda tree, i: tree.match_call(chosen[i]), len(chosen))
    _time(
        figures,
        "match_and_read",
        trees,
        lambda tree, i: tree.match_and_read_call(chosen[i]),
        len(chosen),
    )
    _time(figures, "insert", trees, lambda tree, i: tree.insert_call(fresh[i]), len(fresh))
    _time(
        figures, "evict_512", trees, lambda tree, i: tree.evict_call(EVICTED_TOKENS), num_evictions
    )
    gc.unfreeze()
    return figures


def _time(
    figures: dict[str, float],
    kind: str,
    trees: Sequence[TimedTree],
    call_of: Callable[[TimedTree, int], Call],
    count: int,
) -> None:
    """Add median and 99th percentile of each tree, and how often ours fits in the peer's."""
    times = np.zeros((len(trees), count))
    for block in range(0, count, BLOCK):
        order = list(range(len(trees)))
        for number in order if block % (2 * BLOCK) == 0 else reversed(order):
            for index in range(block, min(block + BLOCK, count)):
                times[number, index] = _time_us(call_of(trees[number], index))
    for number, tree in enumerate(trees):
        prefix = "" if number == 0 else f"{tree.name}_"
        figures[f"{prefix}{kind}_us"] = round(float(np.median(times[number])), 2)
        figures[f"{prefix}{kind}_p99_us"] = round(float(np.percentile(times[number], 99)), 2)
    if len(trees) > 1:
        medians = np.median(times, axis=1)
        figures[f"{kind}_times_faster"] = round(float(medians[1] / medians[0]), 1)


def _time_us(call: Call) -> float:
    start = time.perf_counter_ns()
    call()
    return (time.perf_counter_ns() - start) / 1_000
