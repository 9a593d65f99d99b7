"""The attention kernels against float64, over head sizes, types, pages, windows and caps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch

from runtime.kernels.triton.decode_attention import decode_attention
from runtime.kernels.triton.extend_attention import extend_attention
from runtime.kernels.triton.merge_states import workspace_floats
from runtime.kernels.triton.shared_prefix import PrefixGroups, shared_prefix_attention

from .bench import Bench
from .paged_problems import PagedProblem, expected_attention, paged_problem

# Weights and outputs are rounded to the type; values are of size one.
TOLERANCES = {torch.float32: 1e-5, torch.float16: 3e-3, torch.bfloat16: 2e-2}
_NUM_SPLITS = 4
_BF16, _F16, _F32, _FP8 = torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn

Check = Callable[[], float]
_Tensor: TypeAlias = torch.Tensor
_Arguments: TypeAlias = tuple[_Tensor, _Tensor, _Tensor, _Tensor, _Tensor]


@dataclass(frozen=True, slots=True)
class _Shape:
    heads: tuple[int, int]
    head_dim: int
    dtype: torch.dtype
    kv_dtype: torch.dtype
    window: int = 0
    logit_cap: float = 0.0
    page_size: int = 1

    def __str__(self) -> str:
        types = "/".join(str(one).removeprefix("torch.") for one in (self.dtype, self.kv_dtype))
        options = f"window {self.window}, cap {self.logit_cap:g}, page {self.page_size}"
        return f"{self.heads[0]}:{self.heads[1]} heads of {self.head_dim}, {types}, {options}"


def attention_checks(bench: Bench) -> Iterator[tuple[str, str, Check]]:
    """(kernel, case, check); a check returns the error in shares of the tolerance."""
    for shape in _shapes(bench):
        yield "decode attention", str(shape), lambda shape=shape: _check_decode(bench, shape)  # type: ignore[misc]
        yield "extend attention", str(shape), lambda shape=shape: _check_extend(bench, shape)  # type: ignore[misc]
        if not shape.window:  # the shared part has none
            yield "shared prefix", str(shape), lambda shape=shape: _check_shared(bench, shape)  # type: ignore[misc]


def _shapes(bench: Bench) -> list[_Shape]:
    if bench.is_interpreted:
        plain = _Shape((4, 2), 64, _F16, _F16)
        options = replace(plain, dtype=_F32, kv_dtype=_F32, window=7, logit_cap=20.0, page_size=4)
        return [plain, replace(plain, kv_dtype=_FP8), options]
    types = ((_BF16, _BF16), (_F16, _F16), (_BF16, _FP8))
    shapes = [_Shape((32, 8), dim, *one) for dim in (64, 80, 96, 128, 256) for one in types]
    shapes += [_Shape(heads, 64, _BF16, _BF16) for heads in ((9, 3), (8, 8), (32, 1))]
    for dim in (64, 128):
        plain = _Shape((32, 8), dim, _BF16, _BF16)
        shapes += [replace(plain, window=100), replace(plain, logit_cap=30.0)]
        shapes += [replace(plain, page_size=16), replace(plain, dtype=_F32, kv_dtype=_F32)]
    return shapes


def _check_decode(bench: Bench, shape: _Shape) -> float:
    kv_lens = bench.pick([1, 40], [1, 17, 128, 129, 1000, 2500])
    problem = _problem(bench, shape, kv_lens, [1] * len(kv_lens))
    out = torch.full_like(problem.q, torch.nan)
    decode_attention(
        *_arguments(problem),
        problem.kv_lens,
        out,
        _workspace(problem, _NUM_SPLITS),
        scale=problem.scale,
        num_splits=_NUM_SPLITS,
        window=shape.window,
        logit_cap=shape.logit_cap,
        page_size=shape.page_size,
    )
    return _error(out, problem, shape)


def _check_extend(bench: Bench, shape: _Shape) -> float:
    kv_lens = bench.pick([1, 9, 40], [1, 17, 128, 129, 1000, 2500])
    query_lens = bench.pick([1, 9, 5], [1, 17, 60, 129, 400, 300])
    problem = _problem(bench, shape, kv_lens, query_lens)
    out = torch.full_like(problem.q, torch.nan)
    extend_attention(
        *_arguments(problem),
        problem.cu_query_lens,
        problem.kv_lens,
        out,
        max_query_len=max(query_lens),
        scale=problem.scale,
        window=shape.window,
        logit_cap=shape.logit_cap,
        page_size=shape.page_size,
    )
    return _error(out, problem, shape)


def _check_shared(bench: Bench, shape: _Shape) -> float:
    shared_len = bench.pick(16, 512)
    kv_lens = [shared_len + own for own in bench.pick((1, 9), (1, 17, 128, 700))]
    problem = _problem(bench, shape, kv_lens, [1] * len(kv_lens), shared_len)
    num_rows = len(kv_lens)
    groups = PrefixGroups(
        torch.arange(num_rows, dtype=torch.int32, device=bench.place),
        torch.tensor([0, num_rows], dtype=torch.int32, device=bench.place),
        torch.full((num_rows,), shared_len, dtype=torch.int32, device=bench.place),
    )
    out = torch.full_like(problem.q, torch.nan)
    shared_prefix_attention(
        *_arguments(problem),
        problem.kv_lens,
        groups,
        out,
        _workspace(problem, 2 * _NUM_SPLITS),
        scale=problem.scale,
        num_prefix_splits=_NUM_SPLITS,
        num_splits=_NUM_SPLITS,
        logit_cap=shape.logit_cap,
        page_size=shape.page_size,
    )
    return _error(out, problem, shape)


def _problem(
    bench: Bench, shape: _Shape, kv_lens: list[int], query_lens: list[int], shared_len: int = 0
) -> PagedProblem:
    return paged_problem(
        bench,
        kv_lens,
        query_lens,
        *shape.heads,
        shape.head_dim,
        shape.dtype,
        shape.kv_dtype,
        shape.page_size,
        shared_len,
    )


def _arguments(problem: PagedProblem) -> _Arguments:
    return problem.q, problem.k_pool, problem.v_pool, problem.slot_table, problem.table_rows


def _workspace(problem: PagedProblem, num_states: int) -> torch.Tensor:
    num_rows, num_heads, head_dim = problem.q.shape
    size = workspace_floats(num_rows, num_heads, num_states, head_dim)
    return torch.empty(size, dtype=torch.float32, device=problem.q.device)


def _error(out: torch.Tensor, problem: PagedProblem, shape: _Shape) -> float:
    expected = expected_attention(problem, shape.logit_cap, shape.window)
    return relative_error(out, expected)


def relative_error(
    actual: torch.Tensor, expected: torch.Tensor, tolerance: float | None = None
) -> float:
    """The worst difference, in shares of tolerance x (1 + size); NaN if any is."""
    if tolerance is None:
        tolerance = TOLERANCES[actual.dtype]
    allowed = tolerance * (1 + expected.double().abs())
    return float(((actual.double() - expected.double()).abs() / allowed).max())
