"""Time the radix tree at scale: insert, full match, and evicting 512 tokens from a full tree.

    python benchmark/radix_tree.py --sequences 20000 --json
    python benchmark/radix_tree.py --workload all --sglang-source FOLDER

The tree is filled, then each operation is timed by itself; medians and 99th percentiles in
microseconds, with --json as one object (insert_us, match_us, evict_512_us are medians). With
SGLang installed, or --sglang-source (or $SGLANG_SOURCE) naming a folder that holds a copy of its
source, its RadixCache runs beside ours: same prompts, operation by operation in turn, on CPU
tensors. It needs torch; what is loaded and how is said in tree_bench/radix_cache_module.py.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))  # absent under PYTHONSAFEPATH

from tree_bench.radix_cache_module import load_radix_cache
from tree_bench.timing import measure
from tree_bench.trees import OurTree, RadixCachePeer, TimedTree
from tree_bench.workloads import WORKLOADS

from runtime.srt.memory.eviction_order import EVICTION_POLICIES


def main() -> None:
    """Run the benchmark and print its figures."""
    options = _parse_arguments()
    names = sorted(WORKLOADS) if options.workload == "all" else [options.workload]
    results: dict[str, dict[str, float]] = {}
    for name in names:
        trees = _make_trees(options)
        results[name] = measure(
            trees, WORKLOADS[name], options.sequences, options.operations, options.seed
        )
    if options.json:
        print(json.dumps(results if options.workload == "all" else results[names[0]]))
        return
    for name, figures in results.items():
        print(f"{name}, eviction {options.policy}")
        for key, value in figures.items():
            print(f"  {key:28s} {value:12.1f}")


def _make_trees(options: argparse.Namespace) -> list[TimedTree]:
    trees: list[TimedTree] = [OurTree(options.policy)]
    if options.no_peer:
        return trees
    try:
        module = load_radix_cache(options.sglang_source)
        trees.append(RadixCachePeer(module, options.policy))
    except ImportError as error:
        print(f"skipped: SGLang's RadixCache cannot be imported ({error})", file=sys.stderr)
    return trees


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--sequences", type=int, default=20_000, help="in the tree (20000)")
    parser.add_argument("--operations", type=int, default=2_000, help="timed of each kind (2000)")
    choices = [*sorted(WORKLOADS), "all"]
    parser.add_argument("--workload", choices=choices, default="forest", help="(forest)")
    parser.add_argument(
        "--policy", choices=EVICTION_POLICIES, default="lru", help="of eviction (lru)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the workload (0)")
    source = os.environ.get("SGLANG_SOURCE")
    parser.add_argument(
        "--sglang-source", type=Path, default=source, help="folder that holds sglang/"
    )
    parser.add_argument("--no-peer", action="store_true", help="time our tree only")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    if options.sequences < 1 or options.operations < 1:
        sys.exit("--sequences and --operations must be at least 1")
    return options


if __name__ == "__main__":
    main()
