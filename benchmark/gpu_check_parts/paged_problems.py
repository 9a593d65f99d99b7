"""Random paged attention problems, and what attention means in float64, on the device.

Slots are scattered, and every slot that is no row's holds NaN: a kernel that reads a key too many
cannot be right. Shape letters: T new tokens of all rows, B rows, H query heads, K kv heads, D
head_dim, S slots.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from .bench import Bench

_UNUSED_COLUMNS = 5
_BAD_SLOT = 1  # beside the dummy slot 0


@dataclass(frozen=True, slots=True)
class PagedProblem:
    """Arguments of the attention kernels, all on the device; slots are those of each row."""

    q: torch.Tensor  # [T, H, D]
    k_pool: torch.Tensor  # [S, K, D]
    v_pool: torch.Tensor
    slot_table: torch.Tensor  # [R, C] int32
    table_rows: torch.Tensor  # [B] int64
    cu_query_lens: torch.Tensor  # [B + 1] int32
    kv_lens: torch.Tensor  # [B] int32
    slots: list[torch.Tensor]

    @property
    def scale(self) -> float:
        """As models choose it."""
        return 1 / math.sqrt(self.q.shape[2])


def paged_problem(
    bench: Bench,
    kv_lens: list[int],
    query_lens: list[int],
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    dtype: torch.dtype,
    kv_dtype: torch.dtype,
    page_size: int = 1,
    shared_len: int = 0,
) -> PagedProblem:
    """Rows of these lengths; the first shared_len tokens of all stand in the same slots."""
    slots, num_slots = _slots(kv_lens, page_size, shared_len)
    table = torch.full((len(kv_lens) + 1, max(kv_lens) + _UNUSED_COLUMNS), _BAD_SLOT)
    for row, own in enumerate(slots):
        table[row + 1, : len(own)] = own
    used = torch.cat(slots).to(bench.place)
    starts = torch.tensor([0, *query_lens]).cumsum(0)
    pools = []
    for _ in range(2):
        values = torch.full((num_slots, num_kv_heads, head_dim), math.nan, device=bench.place)
        values[used] = bench.normal(len(used), num_kv_heads, head_dim)
        pools.append(values.to(kv_dtype))
    return PagedProblem(
        bench.normal(int(starts[-1]), num_heads, head_dim, dtype=dtype),
        pools[0],
        pools[1],
        table.to(bench.place, torch.int32),
        torch.arange(1, len(kv_lens) + 1, device=bench.place),
        starts.to(bench.place, torch.int32),
        torch.tensor(kv_lens, dtype=torch.int32, device=bench.place),
        [own.to(bench.place) for own in slots],
    )


def expected_attention(
    problem: PagedProblem, logit_cap: float = 0.0, window: int = 0
) -> torch.Tensor:
    """[T, H, D] in float64."""
    out = torch.zeros(problem.q.shape, dtype=torch.float64, device=problem.q.device)
    num_kv_heads, head_dim = problem.k_pool.shape[1:]
    starts = problem.cu_query_lens.tolist()
    for row, slots in enumerate(problem.slots):
        begin, end = starts[row : row + 2]
        q = problem.q[begin:end].double().view(end - begin, num_kv_heads, -1, head_dim)
        k, v = (_gathered(pool, slots) for pool in (problem.k_pool, problem.v_pool))  # [L, K, D]
        logits = torch.einsum("nkgd,lkd->kgnl", q, k) * problem.scale
        if logit_cap:
            logits = logit_cap * torch.tanh(logits / logit_cap)
        keys = torch.arange(len(slots), device=q.device)
        queries = keys[len(slots) - (end - begin) :, None]
        is_seen = keys <= queries
        if window:
            is_seen &= keys > queries - window
        weights = logits.masked_fill(~is_seen, -math.inf).softmax(-1)
        out[begin:end] = torch.einsum("kgnl,lkd->nkgd", weights, v).flatten(1, 2)
    return out


def _gathered(pool: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    # Bytes are gathered where the type is fp8: not every torch can index it on a GPU.
    if pool.dtype == torch.float8_e4m3fn:
        return pool.view(torch.uint8)[slots].view(pool.dtype).float().double()
    return pool[slots].double()


def _slots(kv_lens: list[int], page_size: int, shared_len: int) -> tuple[list[torch.Tensor], int]:
    random = torch.Generator().manual_seed(1)
    pages = [-(-length // page_size) for length in kv_lens]
    first_page = -(-(_BAD_SLOT + 1) // page_size)
    order = torch.randperm(2 * sum(pages) + 1, generator=random) + first_page
    num_slots = (int(order.max()) + 1) * page_size
    slots = []
    for length, count in zip(kv_lens, pages, strict=True):
        taken, order = order[:count], order[count:]
        every = taken[:, None] * page_size + torch.arange(page_size)
        slots.append(every.reshape(-1)[:length])
    for own in slots[1:]:
        own[:shared_len] = slots[0][:shared_len]
    return slots, num_slots
