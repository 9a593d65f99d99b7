"""TokenRelay: the last token of every request row stays on the device.

A step is launched before the host has seen the tokens that the step before it drew. They go from
step to step here: a step puts what it drew, the next one takes it as its input.

Shape letters: T new tokens of a step, M relayed rows, R sampled rows.
"""

from __future__ import annotations

from typing import Protocol

import torch


class RelayOps(Protocol):
    """How tokens are taken and put: the reference below, or a kernel."""

    def take(
        self,
        input_ids: torch.Tensor,
        last_tokens: torch.Tensor,
        places: torch.Tensor,
        table_rows: torch.Tensor,
    ) -> None:
        """input_ids[places[i]] = last_tokens[table_rows[i]]."""
        ...

    def put(
        self, last_tokens: torch.Tensor, table_rows: torch.Tensor, sampled: torch.Tensor
    ) -> None:
        """last_tokens[table_rows[i]] = sampled[i]."""
        ...


class TorchRelayOps:
    """Indexing in torch, on any device."""

    def take(
        self,
        input_ids: torch.Tensor,
        last_tokens: torch.Tensor,
        places: torch.Tensor,
        table_rows: torch.Tensor,
    ) -> None:
        input_ids.index_copy_(0, places, last_tokens.index_select(0, table_rows))

    def put(
        self, last_tokens: torch.Tensor, table_rows: torch.Tensor, sampled: torch.Tensor
    ) -> None:
        last_tokens.index_copy_(0, table_rows, sampled)


class TokenRelay:
    """num_rows is that of the request table, its dummy row included."""

    def __init__(self, num_rows: int, device: torch.device, ops: RelayOps) -> None:
        self.last_tokens = torch.zeros(num_rows, dtype=torch.int64, device=device)
        self._ops = ops

    def take(self, input_ids: torch.Tensor, places: torch.Tensor, rows: torch.Tensor) -> None:
        """Fill places [M] of input_ids [T] with the last tokens of table rows [M]."""
        if len(places):
            self._ops.take(input_ids, self.last_tokens, places, rows)

    def put(self, rows: torch.Tensor, sampled: torch.Tensor) -> None:
        """Remember the tokens [R] drawn for table rows [R]."""
        if len(rows):
            self._ops.put(self.last_tokens, rows, sampled)
