"""benchmark/radix_tree.py: its workloads and figures at a small size, and a peer that is absent."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tree_bench.radix_cache_module import load_radix_cache
from tree_bench.timing import measure
from tree_bench.trees import OurTree
from tree_bench.workloads import MAX_LENGTH, WORKLOADS


@pytest.mark.parametrize("workload", sorted(WORKLOADS))
def test_every_workload_gives_the_promised_figures(workload: str) -> None:
    figures = measure([OurTree("lru")], WORKLOADS[workload], 60, 5, seed=1)

    assert figures["sequences"] == 60
    assert all(figures[f"{kind}_us"] > 0 for kind in ("insert", "match", "evict_512"))


@pytest.mark.parametrize("workload", sorted(WORKLOADS))
def test_prompts_are_as_long_as_stated(workload: str) -> None:
    lengths = [len(tokens) for tokens in WORKLOADS[workload](300, np.random.default_rng(0))]

    assert 50 <= min(lengths) and max(lengths) <= MAX_LENGTH
    assert len(lengths) == 300


def test_folder_without_the_peer_is_named(tmp_path: Path) -> None:
    with pytest.raises(ImportError, match=str(tmp_path)):
        load_radix_cache(tmp_path)
