"""Time the radix tree at scale: insert, full match, and evicting 512 tokens from a full tree.

    python benchmark/radix_tree.py --sequences 20000 --json

Prompts of 50 to 2,000 tokens. --workload forest: 64 system prompts, 32 documents under each, then
each prompt on its own. --workload chains: shared prefixes left at any token, so that paths are
hundreds of nodes deep; the worst the tree can meet. After the tree is full, each operation is timed
by itself; medians and 99th percentiles in microseconds, also as one JSON object (insert_us,
match_us, evict_512_us are the medians).
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from runtime.srt.memory.radix_tree import RadixTree

Tokens = NDArray[np.int32]

VOCABULARY = 32_000
MAX_LENGTH = 2_000
NUM_SYSTEM_PROMPTS = 64
NUM_DOCUMENTS = 32  # under each system prompt
EVICTED_TOKENS = 512


def main() -> None:
    """Run the benchmark and print its figures."""
    options = _parse_arguments()
    rng = np.random.default_rng(options.seed)
    make_sequences = WORKLOADS[options.workload]
    sequences = make_sequences(options.sequences + options.operations, rng)
    figures = measure(sequences, options.operations, rng)
    if options.json:
        print(json.dumps(figures))
        return
    for name, value in figures.items():
        print(f"{name:20s} {value:12.1f}")


def make_forest(count: int, rng: np.random.Generator) -> list[Tokens]:
    """Return prompts of a system prompt, a document and an end of their own."""
    systems = [_random_tokens(int(rng.integers(20, 401)), rng) for _ in range(NUM_SYSTEM_PROMPTS)]
    documents = [
        [_random_tokens(int(rng.integers(20, 801)), rng) for _ in range(NUM_DOCUMENTS)]
        for _ in range(NUM_SYSTEM_PROMPTS)
    ]
    sequences = []
    for system in _popular(count, rng):
        document = documents[system][int(rng.integers(NUM_DOCUMENTS))]
        own = _random_tokens(int(rng.integers(10, 801)), rng)
        sequences.append(np.concatenate([systems[system], document, own]))
    return sequences


def make_chains(count: int, rng: np.random.Generator) -> list[Tokens]:
    """Return prompts that leave one of 64 shared texts at any token of their first 90 %."""
    texts = [_random_tokens(MAX_LENGTH, rng) for _ in range(NUM_SYSTEM_PROMPTS)]
    sequences = []
    for text_number in _popular(count, rng):
        length = int(rng.integers(50, MAX_LENGTH + 1))
        shared = texts[text_number][: int(length * rng.uniform(0.0, 0.9))]
        sequences.append(np.concatenate([shared, _random_tokens(length - len(shared), rng)]))
    return sequences


def _popular(count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Draw count system prompts, the k-th with a weight of 1 / k."""
    weights = 1.0 / np.arange(1, NUM_SYSTEM_PROMPTS + 1)
    return rng.choice(NUM_SYSTEM_PROMPTS, count, p=weights / weights.sum())


def _random_tokens(count: int, rng: np.random.Generator) -> Tokens:
    return rng.integers(0, VOCABULARY, count, np.int32)


def measure(
    sequences: list[Tokens], num_operations: int, rng: np.random.Generator
) -> dict[str, float]:
    """Fill a tree with all but num_operations sequences, then time num_operations of each kind."""
    tree = RadixTree(page_size=1, free_slots=_forget)
    kept, fresh = sequences[:-num_operations], sequences[-num_operations:]
    slots = np.arange(MAX_LENGTH, dtype=np.int32)
    for tokens in kept:
        tree.insert(tokens, slots[: len(tokens)])
    figures: dict[str, float] = {
        "sequences": len(kept),
        "nodes": tree.num_nodes,
        "tokens": tree.total_tokens,
    }
    chosen = rng.integers(0, len(kept), num_operations)
    match_ns = [_time_ns(tree.match_prefix, kept[index]) for index in chosen]
    insert_ns = [_time_ns(tree.insert, tokens, slots[: len(tokens)]) for tokens in fresh]
    num_evictions = min(num_operations, tree.total_tokens // (2 * EVICTED_TOKENS))
    evict_ns = [_time_ns(tree.evict, EVICTED_TOKENS) for _ in range(num_evictions)]
    for name, times in (("insert", insert_ns), ("match", match_ns), ("evict_512", evict_ns)):
        figures[f"{name}_us"] = round(float(np.median(times)) / 1_000, 2)
        figures[f"{name}_p99_us"] = round(float(np.percentile(times, 99)) / 1_000, 2)
    return figures


def _time_ns(function: Callable[..., object], *arguments: object) -> int:
    start = time.perf_counter_ns()
    function(*arguments)
    return time.perf_counter_ns() - start


def _forget(slots: Tokens) -> None:
    """Stand in for the allocator: the tree alone is measured."""


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--sequences", type=int, default=20_000, help="in the tree (20000)")
    parser.add_argument("--operations", type=int, default=2_000, help="timed of each kind (2000)")
    parser.add_argument("--workload", choices=sorted(WORKLOADS), default="forest", help="(forest)")
    parser.add_argument("--seed", type=int, default=0, help="of the workload (0)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    if options.sequences < 1 or options.operations < 1:
        sys.exit("--sequences and --operations must be at least 1")
    return options


WORKLOADS = {"forest": make_forest, "chains": make_chains}

if __name__ == "__main__":
    main()
