"""The k largest entries of a row, with a fixed rule for ties.

Shape letters: V vocabulary, K candidates.
"""

from __future__ import annotations

import torch


def top_candidates(row: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The min(k, V) largest values of row [V] in falling order, and their ids; both [K].

    Among equal values lower ids come first and are kept first: torch.topk alone leaves that open,
    and the choice could then depend on the machine.
    """
    num_ids = row.shape[0]
    if k >= num_ids:
        values, ids = torch.sort(row, descending=True, stable=True)
        return values, ids
    ids = torch.topk(row, k, sorted=False).indices.sort().values
    values = row[ids]
    lowest = values.min()
    if int((row == lowest).sum()) > int((values == lowest).sum()):
        above = ids[values > lowest]
        ties = (row == lowest).nonzero().flatten()[: k - above.shape[0]]
        ids = torch.cat([above, ties]).sort().values
        values = row[ids]
    values, order = torch.sort(values, descending=True, stable=True)
    return values, ids[order]
