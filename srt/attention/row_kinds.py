"""Which rows of a step decode, and which extend a prompt, for backends with a kernel for each."""

from __future__ import annotations

import numpy as np

from ..execution.forward_batch import ForwardBatch


def num_leading_decode_rows(batch: ForwardBatch) -> int:
    """How many rows from the first on have one new token.

    The planner puts decoding rows first. Rows of one token behind longer ones are few, and kernels
    for prompts take them as well.
    """
    longer = np.flatnonzero(np.diff(batch.cu_query_lens) != 1)
    return int(longer[0]) if len(longer) else batch.num_rows


def longest_query(batch: ForwardBatch, first_row: int) -> int:
    """Most new tokens of a row from first_row on; 0 if there is none."""
    lens = np.diff(batch.cu_query_lens[first_row:])
    return int(lens.max()) if len(lens) else 0
