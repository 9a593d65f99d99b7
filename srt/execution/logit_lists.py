"""What a step's rows do to their logits, as flat lists for the device.

The meaning is that of logit_changes.py, row by row and in its order; here all rows are changed at
once, by a list of masks and one of places in the logits, and nothing is read back.

Shape letters: R rows, V vocabulary, M rows with a mask, N places.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from .forward_batch import SampleRow
from .logit_changes import has_changes
from .packed_arrays import HostArray


@dataclass(frozen=True, slots=True)
class LogitOps:
    """apply_bitmask and apply_edits: in torch below, as kernels in runtime.kernels.triton."""

    apply_bitmask: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None]
    apply_edits: Callable[..., None]


def change_lists(rows: Sequence[SampleRow], vocab_size: int) -> dict[str, HostArray]:
    """The lists of rows' changes by name; empty if nothing changes.

    A place, which is row * V + id, appears once, so that the order of writing means nothing.
    """
    if not any(map(has_changes, rows)):
        return {}
    lists: dict[str, HostArray] = {}
    masks = {i: row.allowed_ids for i, row in enumerate(rows) if row.allowed_ids is not None}
    if masks:
        lists["mask_rows"] = np.array(list(masks), dtype=np.int64)
        lists["masks"] = np.stack(list(masks.values())).view(np.int32)
    edits = [_edits(row, i * vocab_size) for i, row in enumerate(rows) if has_changes(row)]
    if any(len(one["places"]) for one in edits):
        lists |= {name: np.concatenate([one[name] for one in edits]) for name in _EDITS}
    return lists


def changed_logits(
    logits: torch.Tensor, lists: Mapping[str, torch.Tensor], ops: LogitOps
) -> torch.Tensor:
    """A changed copy of logits [R, V] f32, for the uploaded lists of change_lists.

    Logits of -inf become the least finite number, and stay it whatever is added to them: so ids
    that are only impossible to the model stay above those that may not be drawn, and a row of
    nothing else still has a legal id.
    """
    floor = least_logit(logits)
    changed = logits.clamp_min(floor)
    if "masks" in lists:
        ops.apply_bitmask(changed, lists["masks"], lists["mask_rows"])
    if "places" in lists:
        ops.apply_edits(changed, **{name: lists[name] for name in _EDITS}, floor=floor)
    return changed


def least_logit(logits: torch.Tensor) -> float:
    """What changed_logits puts in place of -inf."""
    return torch.finfo(logits.dtype).min


def apply_bitmask(logits: torch.Tensor, bitmask: torch.Tensor, rows: torch.Tensor) -> None:
    """Set the logits [R, V] of ids whose bit is 0 to minus infinity, in place.

    bitmask: [M, ceil(V / 32)] int32; rows: [M] int64, the row of logits of every mask.
    """
    bits = torch.arange(32, dtype=torch.int32, device=bitmask.device)
    allowed = (bitmask.unsqueeze(-1) >> bits) & 1  # [M, words, 32]
    allowed = allowed.view(len(bitmask), -1)[:, : logits.shape[1]]
    masked = logits.index_select(0, rows).masked_fill(allowed == 0, -math.inf)
    logits.index_copy_(0, rows, masked)


def apply_edits(
    logits: torch.Tensor,
    places: torch.Tensor,
    repetition: torch.Tensor,
    penalty: torch.Tensor,
    bias: torch.Tensor,
    suppressed: torch.Tensor,
    *,
    floor: float,
) -> None:
    """Change logits [R, V] at places [N], in place: repetition penalty, then penalty and bias.

    repetition divides what is above 0 and multiplies the rest; penalty is subtracted, bias added.
    Where suppressed is not 0 the logit becomes minus infinity. Others at most floor stay.
    """
    flat = logits.view(-1)
    before = flat.index_select(0, places)
    after = torch.where(before > 0, before / repetition, before * repetition) - penalty + bias
    after = torch.where(before <= floor, before, after)
    flat.index_copy_(0, places, after.masked_fill(suppressed != 0, -math.inf))


TORCH_LOGIT_OPS = LogitOps(apply_bitmask, apply_edits)

_EDITS = ("places", "repetition", "penalty", "bias", "suppressed")
_Ids = npt.NDArray[np.int64]


def _edits(row: SampleRow, first_place: int) -> dict[str, HostArray]:
    """A row's edits: every id that anything happens to, and what."""
    params = row.params
    repeated, counted, counts = _no_ids(), _no_ids(), _no_ids()
    if params.repetition_penalty != 1.0:
        repeated = np.union1d(_as_ids(row.prompt_ids), _as_ids(row.output_ids))
    if len(row.output_ids) and (params.frequency_penalty or params.presence_penalty):
        counted, counts = np.unique(_as_ids(row.output_ids), return_counts=True)
    biases = _biases(row)
    biased, suppressed = _as_ids(list(biases)), _as_ids(row.suppressed_ids)
    ids = np.unique(np.concatenate((repeated, counted, biased, suppressed)))
    edits: dict[str, HostArray] = {
        "places": ids + first_place,
        "repetition": np.ones(len(ids), dtype=np.float32),
        "penalty": np.zeros(len(ids), dtype=np.float32),
        "bias": np.zeros(len(ids), dtype=np.float32),
        "suppressed": np.zeros(len(ids), dtype=np.int32),
    }
    edits["repetition"][np.searchsorted(ids, repeated)] = params.repetition_penalty
    amounts = np.float32(params.frequency_penalty) * counts.astype(np.float32)
    edits["penalty"][np.searchsorted(ids, counted)] = amounts + np.float32(params.presence_penalty)
    edits["bias"][np.searchsorted(ids, biased)] = list(biases.values())
    edits["suppressed"][np.searchsorted(ids, suppressed)] = 1
    return edits


def _biases(row: SampleRow) -> dict[int, np.float32]:
    """logit_bias with each id once; an id that comes more than once has the sum."""
    biases: dict[int, np.float32] = {}
    for token_id, bias in row.params.logit_bias:
        biases[token_id] = biases.get(token_id, np.float32(0.0)) + np.float32(bias)
    return biases


def _as_ids(ids: Sequence[int] | npt.NDArray[np.int32]) -> _Ids:
    return np.asarray(ids, dtype=np.int64)


def _no_ids() -> _Ids:
    return np.empty(0, dtype=np.int64)
