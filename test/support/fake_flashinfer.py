"""A package with FlashInfer's wrappers, computing in torch what their plans say.

Holds callers to what the package asks of them: lengths on the host, slots on the device, types
named, one batch size per captured wrapper, and a plan only after the last one has been copied.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

LOG_2E = 1.4426950408889634


class FakeFlashInfer:
    """calls: the wrappers that were planned, with their number of rows."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []
        self.plan_options: list[dict[str, Any]] = []
        self.num_uncopied_plans = 0

    def point(self) -> FakePlanDone:
        return FakePlanDone(self)

    def BatchDecodeWithPagedKVCacheWrapper(self, *args: Any, **kwargs: Any) -> Decode:
        return Decode(self, *args, **kwargs)

    def BatchPrefillWithPagedKVCacheWrapper(self, *args: Any, **kwargs: Any) -> Prefill:
        return Prefill(self, *args, **kwargs)

    def MultiLevelCascadeAttentionWrapper(self, levels: int, *args: Any) -> Cascade:
        assert levels == 2
        return Cascade(self, *args)


class FakePlanDone:
    """A point behind the plans made so far."""

    def __init__(self, package: FakeFlashInfer) -> None:
        self._package = package

    def wait_on_host(self) -> None:
        self._package.num_uncopied_plans = 0


class _Level:
    """Some queries' attention to the slots of their row: outputs and log-sum-exp in base 2."""

    def __init__(
        self,
        qo_indptr: torch.Tensor,
        indptr: torch.Tensor,
        indices: torch.Tensor,
        last_page_len: torch.Tensor,
        heads: tuple[int, int, int],
        is_causal: bool,
    ) -> None:
        assert indptr.dtype == indices.dtype == torch.int32
        assert last_page_len.tolist() == [1] * (len(indptr) - 1)
        assert int(indptr[-1]) == len(indices) and int(indptr[0]) == 0
        self._qo_indptr = qo_indptr.tolist()
        self._indptr = indptr.tolist()
        self._indices = indices.clone()
        self._heads = heads
        self._is_causal = is_causal

    def run(
        self, q: torch.Tensor, pool: tuple[torch.Tensor, torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        k_pool, v_pool = pool
        num_heads, num_kv_heads, head_dim = self._heads
        assert k_pool.shape[1:] == (1, num_kv_heads, head_dim)
        assert q.shape == (self._qo_indptr[-1], num_heads, head_dim)
        out, lse = torch.zeros_like(q), torch.full(q.shape[:2], float("-inf"))
        for row in range(len(self._indptr) - 1):
            part = slice(self._qo_indptr[row], self._qo_indptr[row + 1])
            slots = self._indices[self._indptr[row] : self._indptr[row + 1]].long()
            keys = k_pool[slots, 0].repeat_interleave(num_heads // num_kv_heads, 1)
            values = v_pool[slots, 0].repeat_interleave(num_heads // num_kv_heads, 1)
            logits = torch.einsum("qhd,lhd->hql", q[part], keys) / head_dim**0.5
            if self._is_causal:
                num_new = part.stop - part.start
                places = torch.arange(len(slots))
                visible = places.unsqueeze(0) <= places[len(slots) - num_new :].unsqueeze(1)
                logits = logits.masked_fill(~visible, float("-inf"))
            lse[part] = torch.logsumexp(logits, -1).T * LOG_2E
            out[part] = torch.einsum("hql,lhd->qhd", F.softmax(logits, -1), values)
        return out, lse


class _Wrapper:
    def __init__(
        self, package: FakeFlashInfer, workspace: torch.Tensor, layout: str, **options: Any
    ) -> None:
        assert layout == "NHD" and workspace.dtype == torch.uint8
        self._package = package
        self._options = options
        self._levels: list[_Level] = []

    def _planned(self, name: str, num_rows: int, options: dict[str, Any]) -> None:
        assert {"q_data_type", "kv_data_type"} <= options.keys(), "the default is float16"
        self._package.calls.append((name, num_rows))
        self._package.plan_options.append(options)
        self._package.num_uncopied_plans += 1

    def run(self, q: torch.Tensor, pool: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        out, lse = self._levels[0].run(q, pool)
        for level in self._levels[1:]:
            other, other_lse = level.run(q, pool)
            total = torch.logaddexp2(lse, other_lse)
            out = out * (lse - total).exp2().unsqueeze(-1)
            out += other * (other_lse - total).exp2().unsqueeze(-1)
            lse = total
        return out


class Decode(_Wrapper):
    def plan(
        self,
        indptr: torch.Tensor,
        indices: torch.Tensor,
        last_page_len: torch.Tensor,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        page_size: int,
        **options: Any,
    ) -> None:
        assert page_size == 1
        name, num_rows = "decode", len(indptr) - 1
        if self._options.get("use_cuda_graph"):
            name = "graph"
            assert num_rows == len(self._options["paged_kv_last_page_len_buffer"])
            assert num_rows + 1 == len(self._options["paged_kv_indptr_buffer"])
            buffer = self._options["paged_kv_indices_buffer"]
            buffer[: len(indices)] = indices
        self._planned(name, num_rows, options)
        heads = num_heads, num_kv_heads, head_dim
        each = torch.arange(num_rows + 1)
        self._levels = [_Level(each, indptr, indices, last_page_len, heads, False)]


class Prefill(_Wrapper):
    def plan(
        self,
        qo_indptr: torch.Tensor,
        indptr: torch.Tensor,
        indices: torch.Tensor,
        last_page_len: torch.Tensor,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        page_size: int,
        *,
        causal: bool,
        **options: Any,
    ) -> None:
        assert page_size == 1 and causal
        self._planned("extend", len(indptr) - 1, options)
        heads = num_heads, num_kv_heads, head_dim
        self._levels = [_Level(qo_indptr, indptr, indices, last_page_len, heads, True)]


class Cascade(_Wrapper):
    def plan(
        self,
        qo_indptrs: list[torch.Tensor],
        indptrs: list[torch.Tensor],
        indices: list[torch.Tensor],
        last_page_lens: list[torch.Tensor],
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        page_size: int,
        *,
        causal: bool,
        **options: Any,
    ) -> None:
        assert page_size == 1 and causal
        self._planned("cascade", len(indptrs[1]) - 1, options)
        heads = num_heads, num_kv_heads, head_dim
        levels = zip(qo_indptrs, indptrs, indices, last_page_lens, strict=True)
        self._levels = [
            _Level(*level, heads, is_causal)
            for level, is_causal in zip(levels, (False, True), strict=True)
        ]
