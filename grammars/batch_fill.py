"""fill_batch: the masks of a whole batch, with one native call per engine."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from .matcher import Matcher


class _FillsRows(Protocol):
    @staticmethod
    def fill_rows(
        matchers: Sequence[tuple[int, Any]], bitmask: npt.NDArray[np.uint32], threads: int
    ) -> list[int]: ...


def fill_batch(
    matchers: Sequence[Matcher | None], bitmask: npt.NDArray[np.uint32], threads: int = 1
) -> list[int]:
    """Write row i of bitmask [R, W] for matchers[i]; rows of None are set to all legal.

    bitmask: uint32, C-contiguous, W = bitmask_words(V), R >= len(matchers); further rows stay as
    they are. No matcher may be finished. Returns the rows whose grammar became too costly to go
    on with: their bits mean nothing, and their requests must end with an error.
    """
    assert bitmask.flags.c_contiguous and bitmask.dtype == np.uint32, bitmask.dtype
    groups: defaultdict[type[Any], list[tuple[int, Matcher]]] = defaultdict(list)
    for row, matcher in enumerate(matchers):
        if matcher is None:
            bitmask[row] = 0xFFFFFFFF
        else:
            groups[type(matcher)].append((row, matcher))
    broken: list[int] = []
    for kind, rows in groups.items():
        filler: type[_FillsRows] = kind
        broken += filler.fill_rows(rows, bitmask, threads)
    return sorted(broken)
