"""What a step's rows do to their logits, as flat lists for the device.

The meaning is that of logit_changes.py, row by row and in its order; here all rows are changed at
once, by lists of (row, id, amount), and nothing is read back.

Shape letters: R rows, V vocabulary, M rows with a mask, N entries of a list.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch

from .forward_batch import SampleRow
from .logit_changes import has_changes
from .packed_arrays import HostArray

# apply_bitmask(logits [R, V] f32, bitmask [M, ceil(V / 32)] int32, rows [M] int64): ids whose bit
# is 0 become -inf.
ApplyBitmask = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None]


def change_lists(rows: Sequence[SampleRow], vocab_size: int) -> dict[str, HostArray]:
    """The lists of rows' changes by name; empty if nothing changes.

    Ids of one row appear once in each list, so that the order of writing means nothing.
    """
    if not any(map(has_changes, rows)):
        return {}
    lists: dict[str, HostArray] = {}
    masked = [i for i, row in enumerate(rows) if row.allowed_ids is not None]
    if masked:
        masks = [row.allowed_ids for row in rows if row.allowed_ids is not None]
        lists["mask_rows"] = np.array(masked, dtype=np.int64)
        lists["masks"] = np.stack(masks).view(np.int32)
    _add(lists, "repetition", rows, vocab_size, _repetition)
    _add(lists, "penalty", rows, vocab_size, _penalty)
    _add(lists, "bias", rows, vocab_size, _bias)
    _add(lists, "suppressed", rows, vocab_size, _suppressed)
    return lists


def changed_logits(
    logits: torch.Tensor, lists: dict[str, torch.Tensor], apply_bitmask: ApplyBitmask
) -> torch.Tensor:
    """A changed copy of logits [R, V] f32, for the uploaded lists of change_lists.

    Logits of -inf become the least finite number: so ids that are only impossible to the model stay
    above those that may not be drawn, and a row of nothing else still has a legal id.
    """
    changed = logits.clamp_min(least_logit(logits))
    flat = changed.view(-1)
    if "masks" in lists:
        apply_bitmask(changed, lists["masks"], lists["mask_rows"])
    if "repetition_places" in lists:
        places, penalty = lists["repetition_places"], lists["repetition"]
        values = flat.index_select(0, places)
        values = torch.where(values > 0, values / penalty, values * penalty)
        flat.index_copy_(0, places, values)
    if "penalty_places" in lists:
        places = lists["penalty_places"]
        flat.index_copy_(0, places, flat.index_select(0, places) - lists["penalty"])
    if "bias_places" in lists:
        places = lists["bias_places"]
        flat.index_copy_(0, places, flat.index_select(0, places) + lists["bias"])
    if "suppressed_places" in lists:
        flat.index_fill_(0, lists["suppressed_places"], -math.inf)
    return changed


def least_logit(logits: torch.Tensor) -> float:
    """What changed_logits puts in place of -inf."""
    return torch.finfo(logits.dtype).min


def apply_bitmask(logits: torch.Tensor, bitmask: torch.Tensor, rows: torch.Tensor) -> None:
    """ApplyBitmask in torch, on any device."""
    bits = torch.arange(32, dtype=torch.int32, device=bitmask.device)
    allowed = (bitmask.unsqueeze(-1) >> bits) & 1  # [M, words, 32]
    allowed = allowed.view(len(bitmask), -1)[:, : logits.shape[1]]
    masked = logits.index_select(0, rows).masked_fill(allowed == 0, -math.inf)
    logits.index_copy_(0, rows, masked)


_Entries = tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]


def _add(
    lists: dict[str, HostArray],
    name: str,
    rows: Sequence[SampleRow],
    vocab_size: int,
    entries_of: Callable[[SampleRow], _Entries | None],
) -> None:
    """Add the entries of all rows as places in the flattened logits, and amounts."""
    places: list[npt.NDArray[np.int64]] = []
    amounts: list[npt.NDArray[np.float32]] = []
    for i, row in enumerate(rows):
        entries = entries_of(row)
        if entries is not None:
            places.append(entries[0] + i * vocab_size)
            amounts.append(entries[1])
    if places:
        lists[f"{name}_places"] = np.concatenate(places)
        lists[name] = np.concatenate(amounts)


def _repetition(row: SampleRow) -> _Entries | None:
    penalty = row.params.repetition_penalty
    if penalty == 1.0:
        return None
    ids = np.union1d(_as_ids(row.prompt_ids), _as_ids(row.output_ids))
    return ids, np.full(len(ids), penalty, dtype=np.float32)


def _penalty(row: SampleRow) -> _Entries | None:
    params = row.params
    if not len(row.output_ids) or not (params.frequency_penalty or params.presence_penalty):
        return None
    ids, counts = np.unique(_as_ids(row.output_ids), return_counts=True)
    amounts = np.float32(params.frequency_penalty) * counts.astype(np.float32)
    return ids, amounts + np.float32(params.presence_penalty)


def _bias(row: SampleRow) -> _Entries | None:
    if not row.params.logit_bias:
        return None
    biases: dict[int, np.float32] = {}
    for token_id, bias in row.params.logit_bias:
        biases[token_id] = biases.get(token_id, np.float32(0.0)) + np.float32(bias)
    return np.array(list(biases), dtype=np.int64), np.array(list(biases.values()), np.float32)


def _suppressed(row: SampleRow) -> _Entries | None:
    if not row.suppressed_ids:
        return None
    ids = np.unique(_as_ids(row.suppressed_ids))
    return ids, np.zeros(len(ids), dtype=np.float32)


def _as_ids(ids: Sequence[int] | npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
    return np.asarray(ids, dtype=np.int64)
