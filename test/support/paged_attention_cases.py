"""Random paged attention problems full of traps, and what attention means in float64.

Slots are scattered. Every slot that belongs to no row, the dummy slot 0 and all table entries past
a row's length hold NaN or point to it, so a kernel that reads one key too many cannot be right.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from .guarded_tensors import guarded

_BAD_SLOT = 1  # holds NaN
_UNUSED_COLUMNS = 5


@dataclass(frozen=True, slots=True)
class PagedCase:
    """Shape letters: B rows, T new tokens of all rows, H query heads, K kv heads, D head_dim."""

    q: torch.Tensor  # [T, H, D]
    k_pool: torch.Tensor  # [S, K, D]
    v_pool: torch.Tensor
    slot_table: torch.Tensor  # [R, C] int32
    table_rows: torch.Tensor  # [B] int64
    cu_query_lens: torch.Tensor  # [B + 1] int32
    kv_lens: torch.Tensor  # [B] int32
    slots: list[torch.Tensor]  # of each row, by position

    @property
    def scale(self) -> float:
        """As models choose it."""
        return 1 / math.sqrt(self.q.shape[2])


def paged_case(
    kv_lens: Sequence[int],
    query_lens: Sequence[int] | None = None,
    *,
    num_heads: int = 4,
    num_kv_heads: int = 2,
    head_dim: int = 64,
    dtype: torch.dtype = torch.float32,
    kv_dtype: torch.dtype | None = None,
    page_size: int = 1,
    shared_prefixes: Sequence[tuple[Sequence[int], int]] = (),
    seed: int = 0,
) -> PagedCase:
    """A problem with rows of these lengths; one new token per row unless query_lens says more.

    shared_prefixes: (rows, length) pairs: the first length tokens of the rows have the same slots.
    """
    random = torch.Generator().manual_seed(seed)
    query_lens = [1] * len(kv_lens) if query_lens is None else query_lens
    slots, num_slots = _scattered_slots(kv_lens, page_size, random)
    for rows, length in shared_prefixes:
        for row in rows[1:]:
            slots[row][:length] = slots[rows[0]][:length]
    table, table_rows = _slot_table(slots, page_size, random)
    pools = [
        _pool(slots, (num_slots, num_kv_heads, head_dim), kv_dtype or dtype, random)
        for _ in range(2)
    ]
    starts = [0]
    for query_len in query_lens:
        starts.append(starts[-1] + query_len)
    q = torch.randn(starts[-1], num_heads, head_dim, generator=random).to(dtype)
    return PagedCase(
        guarded(q),
        guarded(pools[0]),
        guarded(pools[1]),
        guarded(table),
        guarded(table_rows),
        guarded(torch.tensor(starts, dtype=torch.int32)),
        guarded(torch.tensor(list(kv_lens), dtype=torch.int32)),
        slots,
    )


def expected_attention(
    case: PagedCase,
    *,
    logit_cap: float = 0.0,
    window: int = 0,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
    kv_starts: Sequence[int] | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention [T, H, D] and log-sum-exp in base 2 [T, H], in float64, one query at a time."""
    out = torch.zeros(case.q.shape, dtype=torch.float64)
    lse = torch.full(case.q.shape[:2], -math.inf, dtype=torch.float64)
    group = case.q.shape[1] // case.k_pool.shape[1]
    for row, slots in enumerate(case.slots):
        begin, end = case.cu_query_lens[row : row + 2].tolist()
        k = case.k_pool[slots].double() * k_scale  # [L, K, D]
        v = case.v_pool[slots].double() * v_scale
        for token in range(begin, end):
            position = len(slots) - (end - token)
            first = 0 if kv_starts is None else kv_starts[row]
            if window:
                first = max(first, position - window + 1)
            if first > position:
                continue
            for head in range(case.q.shape[1]):
                query = case.q[token, head].double()
                logits = k[first : position + 1, head // group] @ query * case.scale
                if logit_cap:
                    logits = logit_cap * torch.tanh(logits / logit_cap)
                weights = torch.softmax(logits, 0)
                out[token, head] = weights @ v[first : position + 1, head // group]
                lse[token, head] = torch.logsumexp(logits, 0) / math.log(2)
    return out, lse


def assert_close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """Within a few roundings of values of size one; weights and outputs are in the dtype."""
    tolerance = {torch.float32: 4e-6, torch.float16: 3e-3}[actual.dtype]
    torch.testing.assert_close(actual.double(), expected, rtol=tolerance, atol=tolerance)


def _scattered_slots(
    kv_lens: Sequence[int], page_size: int, random: torch.Generator
) -> tuple[list[torch.Tensor], int]:
    pages = [-(-kv_len // page_size) for kv_len in kv_lens]
    num_free_pages = 2 * sum(pages) + 3
    # Whole pages at multiples of the page size; the first page holds the dummy and the bad slot.
    first_page = -(-(_BAD_SLOT + 1) // page_size)
    order = torch.randperm(num_free_pages, generator=random) + first_page
    slots = []
    for kv_len, num_pages in zip(kv_lens, pages, strict=True):
        taken, order = order[:num_pages], order[num_pages:]
        every = taken[:, None] * page_size + torch.arange(page_size)
        slots.append(every.reshape(-1)[:kv_len])
    return slots, (first_page + num_free_pages) * page_size


def _slot_table(
    slots: list[torch.Tensor], page_size: int, random: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    num_rows = len(slots) + 3
    num_columns = max((len(row) for row in slots), default=0) + _UNUSED_COLUMNS
    table = torch.full((num_rows, num_columns), _BAD_SLOT, dtype=torch.int32)
    table_rows = torch.randperm(num_rows, generator=random)[: len(slots)]
    for table_row, row in zip(table_rows.tolist(), slots, strict=True):
        # Of a page, only the first entry is meant to be read.
        places = torch.arange(0, len(row), page_size)
        table[table_row, places] = row[places].to(torch.int32)
    return table, table_rows


def _pool(
    slots: list[torch.Tensor],
    shape: tuple[int, int, int],
    dtype: torch.dtype,
    random: torch.Generator,
) -> torch.Tensor:
    values = torch.randn(shape, generator=random)
    is_used = torch.zeros(shape[0], dtype=torch.bool)
    for row in slots:
        is_used[row] = True
    values[~is_used] = math.nan
    return values.to(dtype)
