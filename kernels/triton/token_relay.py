"""Token ids from step to step on the device: take the last tokens of rows, put new ones.

Shape letters: T new tokens of a step, M relayed rows, R rows of the request table.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

_BLOCK = 256


def take(
    input_ids: torch.Tensor,
    last_tokens: torch.Tensor,
    places: torch.Tensor,
    table_rows: torch.Tensor,
) -> None:
    """input_ids[places[i]] = last_tokens[table_rows[i]].

    input_ids: [T]; last_tokens: [R]; places and table_rows: [M]; integers, contiguous.
    """
    assert places.shape == table_rows.shape, f"places {places.shape}, rows {table_rows.shape}"
    _move(input_ids, places, last_tokens, table_rows)


def put(last_tokens: torch.Tensor, table_rows: torch.Tensor, sampled: torch.Tensor) -> None:
    """last_tokens[table_rows[i]] = sampled[i].

    last_tokens: [R]; table_rows and sampled: [M]; integers, contiguous. Where a row is named twice,
    as the dummy row is, either token may win.
    """
    assert sampled.shape == table_rows.shape, f"sampled {sampled.shape}, rows {table_rows.shape}"
    _move(last_tokens, table_rows, sampled, None)


def _move(
    to: torch.Tensor,
    to_places: torch.Tensor,
    source: torch.Tensor,
    source_places: torch.Tensor | None,
) -> None:
    for tensor in (to, to_places, source, source_places):
        assert tensor is None or (tensor.ndim == 1 and tensor.is_contiguous()), (
            f"a tensor has shape {tuple(tensor.shape)}, strides {tensor.stride()}"
        )
    num_tokens = len(to_places)
    if num_tokens == 0:
        return
    _move_kernel[(triton.cdiv(num_tokens, _BLOCK),)](
        to,
        to_places,
        source,
        source_places,
        num_tokens,
        HAS_SOURCE_PLACES=source_places is not None,
        BLOCK=_BLOCK,
        num_warps=4,
    )


@triton.jit
def _move_kernel(
    to,
    to_places,
    source,
    source_places,
    num_tokens,
    HAS_SOURCE_PLACES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    numbers = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    is_token = numbers < num_tokens
    places = numbers
    if HAS_SOURCE_PLACES:
        places = tl.load(source_places + numbers, mask=is_token, other=0)
    tokens = tl.load(source + places, mask=is_token, other=0)
    places = tl.load(to_places + numbers, mask=is_token, other=0)
    tl.store(to + places, tokens.to(to.dtype.element_ty), mask=is_token)
