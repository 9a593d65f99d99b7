"""Attention by FlashInfer, an optional package: planned once per step, run in every layer.

The pool is seen as pages of one slot, so a row's pages are its slots. Plans are made from lengths
that the host knows; the slots are gathered on the device. Decoding rows that share a long prefix go
through FlashInfer's cascade, which reads the prefix once.

Shape letters: T new tokens of all rows, B rows, N slots of all rows, K kv heads, D head_dim.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from ..execution.forward_batch import ForwardBatch
from ..execution.packed_arrays import HostArray
from ..loading.model_config import ModelConfig
from ..memory.kv_pool import KvPool
from .graph_attention import StepForm
from .prefix_groups import PrefixGroup, find_prefix_groups
from .row_kinds import num_leading_decode_rows
from .tensor_batch import TensorBatch
from .triton_backend import Upload

# For split prefills of many heads: 420 to 456 MB were asked for in reports about Qwen2.5-7B.
_LEAST_WORKSPACE_BYTES = 512 << 20
# Partial results of a split step stand there in float32: for each head up to two tiles of this many
# queries on each multiprocessor, as FlashInfer plans them.
_TILE_QUERIES = 128
_HEAD_DIMS = (64, 128, 256)
# Heads per kv head that the kernels without the matrix unit are built for; with 4 or more the
# matrix unit has work enough.
_SMALL_GROUPS = (1, 2, 3)
# A captured step reads every row's whole context. Reading this much less is worth the host's work
# for an uncaptured one: a millisecond at 4 TB/s. An estimate, not measured.
_EAGER_SAVED_BYTES = 4 << 30

StoreKv = Callable[..., None]


class PlanDone(Protocol):
    """A point in the stream that a plan was enqueued on."""

    def wait_on_host(self) -> None: ...


def flashinfer_module() -> Any:
    """The package. Raises ImportError."""
    return importlib.import_module("flashinfer")


def unsupported_reason(config: ModelConfig, kv_dtype: torch.dtype) -> str | None:
    """Why FlashInfer cannot serve a model; None if it can."""
    if config.head_dim not in _HEAD_DIMS:
        return f"head_dim is {config.head_dim}, it takes {', '.join(map(str, _HEAD_DIMS))}"
    if kv_dtype not in (torch.bfloat16, torch.float16):
        return f"keys and values are {kv_dtype}, it takes bfloat16 and float16"
    return None


def workspace_bytes(config: ModelConfig, num_multiprocessors: int) -> int:
    """Bytes that all wrappers share for partial results: FlashInfer's bound, and a quarter more."""
    group = config.num_heads // config.num_kv_heads
    tile_bytes = _TILE_QUERIES * group * (config.head_dim + 1) * 4  # values and a log-sum-exp
    return max(_LEAST_WORKSPACE_BYTES, int(1.25 * 2 * num_multiprocessors * tile_bytes))


@dataclass(frozen=True, slots=True)
class _Part:
    """Some tokens of the step and the planned wrapper for them.

    tokens: their places on the T axis as indices; None for a range.
    """

    wrapper: Any
    first: int
    last: int
    tokens: torch.Tensor | None = None


class FlashInferAttention:
    """A GraphAttention. kv_bytes: of a token over all layers.

    record returns a point in the current stream: a plan is copied from host memory that the next
    plan writes to, so that has to wait for it. is_deterministic: a row's keys are not split, nor
    prefixes shared, so its bits do not depend on the rest of the batch.
    """

    name = "flashinfer"

    def __init__(
        self,
        config: ModelConfig,
        package: Any,
        store_kv: StoreKv,
        upload: Upload,
        record: Callable[[], PlanDone],
        device: torch.device,
        dtype: torch.dtype,
        *,
        num_multiprocessors: int,
        max_context: int,
        kv_bytes: int,
        is_deterministic: bool = False,
    ) -> None:
        self._config = config
        self._package = package
        self._store_kv = store_kv
        self._upload = upload
        self._record = record
        self._device = device
        self._dtype = dtype
        self._max_context = max_context
        self._kv_bytes = kv_bytes
        self.is_deterministic = is_deterministic
        group = config.num_heads // config.num_kv_heads
        self._use_tensor_cores = group not in _SMALL_GROUPS
        # Zero at first: its kernels count in it.
        num_bytes = workspace_bytes(config, num_multiprocessors)
        self._workspace = torch.zeros(num_bytes, dtype=torch.uint8, device=device)
        self._decode = package.BatchDecodeWithPagedKVCacheWrapper(
            self._workspace, "NHD", use_tensor_cores=self._use_tensor_cores
        )
        self._extend = package.BatchPrefillWithPagedKVCacheWrapper(self._workspace, "NHD")
        self._cascade = package.MultiLevelCascadeAttentionWrapper(2, self._workspace, "NHD")
        self._captured: dict[int, tuple[Any, TensorBatch]] = {}
        self._graph_indices: torch.Tensor | None = None
        self._planned: PlanDone | None = None
        self._batch: TensorBatch | None = None
        self._parts: list[_Part] = []

    def prepare(self, batch: TensorBatch) -> None:
        """Plan for batch; without batch.host the plan is that of plan_capture."""
        host = batch.host
        if host is None:
            size = len(batch.kv_lens)
            self._batch = batch
            self._parts = [_Part(self._captured[size][0], 0, size)]
            return
        self.plan(batch, self._prefix_groups(host, num_leading_decode_rows(host)))

    def plan(self, batch: TensorBatch, groups: list[PrefixGroup]) -> None:
        """Plan for batch, whose host part is there, with the prefixes of groups read once."""
        host = batch.host
        assert host is not None
        self._batch = batch
        self._wait_for_last_plan()
        num_decode = num_leading_decode_rows(host)
        self._parts = []
        if groups:
            self._plan_groups(batch, host, groups, num_decode)
        elif num_decode:
            rows = slice(0, num_decode)
            indices = self._decode_slots(
                batch, batch.table_rows[rows], batch.kv_lens[rows], host.kv_lens[rows]
            )
            self._plan_decode(self._decode, host.kv_lens[rows], indices)
            self._parts.append(_Part(self._decode, 0, num_decode))
        if num_decode < host.num_rows:
            self._plan_extend(batch, host, num_decode)
        self._planned = self._record()

    def forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        layer: int,
        kv_pool: KvPool,
        batch: TensorBatch,
    ) -> torch.Tensor:
        """See AttentionBackend.forward."""
        assert batch is self._batch, "prepare(batch) must come first"
        k_pool, v_pool = kv_pool.k[layer], kv_pool.v[layer]
        self._store_kv(k, v, k_pool, v_pool, batch.out_slots)
        pool = k_pool.unsqueeze(1), v_pool.unsqueeze(1)  # pages of one slot, [S, 1, K, D]
        q = q.contiguous()
        if len(self._parts) == 1 and self._parts[0].tokens is None:
            only: torch.Tensor = self._parts[0].wrapper.run(q, pool)
            return only
        out = torch.empty_like(q)
        for part in self._parts:
            if part.tokens is None:
                out[part.first : part.last] = part.wrapper.run(q[part.first : part.last], pool)
            else:
                rows = part.wrapper.run(q.index_select(0, part.tokens), pool)
                out.index_copy_(0, part.tokens, rows)
        return out

    def choose_form(self, batch: ForwardBatch) -> StepForm:
        """Eager where so much of the context is shared that reading it once is worth more."""
        groups = self._prefix_groups(batch, batch.num_rows)
        saved = sum(group.num_saved_tokens for group in groups)
        worth_it = saved * self._kv_bytes >= _EAGER_SAVED_BYTES
        return StepForm.EAGER if worth_it else StepForm.PLAIN

    def plan_capture(self, size: int, batch: TensorBatch) -> None:
        """Make the wrapper of a captured size, and plan it for rows of one token."""
        if self._graph_indices is None:  # the largest size comes first
            num_slots = size * self._max_context
            self._graph_indices = self._int32(num_slots)
        wrapper = self._package.BatchDecodeWithPagedKVCacheWrapper(
            self._workspace,
            "NHD",
            use_cuda_graph=True,
            use_tensor_cores=self._use_tensor_cores,
            paged_kv_indptr_buffer=self._int32(size + 1),
            paged_kv_indices_buffer=self._graph_indices,
            paged_kv_last_page_len_buffer=self._int32(size),
        )
        self._captured[size] = wrapper, batch
        self._plan_graph(size, np.ones(size, dtype=np.int64))

    def forget_captures(self) -> None:
        """Let go of the wrappers of captured sizes; others may then be captured, largest first."""
        self._captured.clear()
        self._graph_indices = None

    def plan_replay(self, size: int, batch: ForwardBatch) -> None:
        """Plan a captured size for batch's rows and padding of one token each."""
        kv_lens = np.ones(size, dtype=np.int64)
        kv_lens[: batch.num_rows] = batch.kv_lens
        self._plan_graph(size, kv_lens)

    def _plan_graph(self, size: int, kv_lens: HostArray) -> None:
        wrapper, batch = self._captured[size]
        self._wait_for_last_plan()
        indices = self._decode_slots(batch, batch.table_rows, batch.kv_lens, kv_lens)
        self._plan_decode(wrapper, kv_lens, indices)
        self._planned = self._record()

    def _decode_slots(
        self,
        batch: TensorBatch,
        table_rows: torch.Tensor,
        lens: torch.Tensor,
        host_lens: HostArray,
    ) -> torch.Tensor:
        return _slots_of(batch, table_rows, torch.zeros_like(table_rows), lens, host_lens)

    def _plan_decode(self, wrapper: Any, kv_lens: HostArray, indices: torch.Tensor) -> None:
        config = self._config
        wrapper.plan(
            _indptr(kv_lens),
            indices,
            torch.ones(len(kv_lens), dtype=torch.int32),  # every page is full: it is one slot
            config.num_heads,
            config.num_kv_heads,
            config.head_dim,
            1,
            q_data_type=self._dtype,
            kv_data_type=self._dtype,
            disable_split_kv=self.is_deterministic,
        )

    def _plan_extend(self, batch: TensorBatch, host: ForwardBatch, first: int) -> None:
        """Rows from first on, whose tokens begin at first: each row before has one."""
        config = self._config
        kv_lens = host.kv_lens[first:]
        rows = slice(first, None)
        indices = self._decode_slots(batch, batch.table_rows[rows], batch.kv_lens[rows], kv_lens)
        self._extend.plan(
            torch.from_numpy(host.cu_query_lens[first:] - host.cu_query_lens[first]),
            _indptr(kv_lens),
            indices,
            torch.ones(len(kv_lens), dtype=torch.int32),
            config.num_heads,
            config.num_kv_heads,
            config.head_dim,
            1,
            causal=True,
            q_data_type=self._dtype,
            kv_data_type=self._dtype,
            disable_split_kv=self.is_deterministic,
        )
        self._parts.append(_Part(self._extend, first, host.num_tokens))

    def _plan_groups(
        self, batch: TensorBatch, host: ForwardBatch, groups: list[PrefixGroup], num_decode: int
    ) -> None:
        """Grouped rows by two levels, a prefix for each group and the rest; others as ever."""
        config = self._config
        rows = np.array([row for group in groups for row in group.rows], dtype=np.int64)
        alone = np.setdiff1d(np.arange(num_decode), rows)
        sizes = np.array([len(group.rows) for group in groups])
        prefix_lens = np.array([group.num_tokens for group in groups], dtype=np.int64)
        own_starts = np.repeat(prefix_lens, sizes)
        own_lens = host.kv_lens[rows] - own_starts
        up = self._upload(
            {
                "rows": rows,
                "alone": alone,
                "leaders": np.array([group.rows[0] for group in groups], dtype=np.int64),
                "prefix_lens": prefix_lens,
                "own_starts": own_starts,
                "own_lens": own_lens,
            }
        )
        leaders = batch.table_rows.index_select(0, up["leaders"])
        members = batch.table_rows.index_select(0, up["rows"])
        no_starts = torch.zeros_like(leaders)
        shared = _slots_of(batch, leaders, no_starts, up["prefix_lens"], prefix_lens)
        own = _slots_of(batch, members, up["own_starts"], up["own_lens"], own_lens)
        self._cascade.plan(
            [_indptr(sizes), torch.arange(len(rows) + 1, dtype=torch.int32)],
            [_indptr(prefix_lens), _indptr(own_lens)],
            [shared, own],
            [torch.ones(len(one), dtype=torch.int32) for one in (groups, rows)],
            config.num_heads,
            config.num_kv_heads,
            config.head_dim,
            1,
            causal=True,
            q_data_type=self._dtype,
            kv_data_type=self._dtype,
        )
        self._parts.append(_Part(self._cascade, 0, len(rows), up["rows"]))
        if len(alone):
            indices = self._decode_slots(
                batch,
                batch.table_rows.index_select(0, up["alone"]),
                batch.kv_lens.index_select(0, up["alone"]),
                host.kv_lens[alone],
            )
            self._plan_decode(self._decode, host.kv_lens[alone], indices)
            self._parts.append(_Part(self._decode, 0, len(alone), up["alone"]))

    def _prefix_groups(self, batch: ForwardBatch, num_rows: int) -> list[PrefixGroup]:
        return [] if self.is_deterministic else find_prefix_groups(batch, num_rows)

    def _wait_for_last_plan(self) -> None:
        # Its copy stands in the stream right behind a step that has been collected: a short wait.
        if self._planned is not None:
            self._planned.wait_on_host()
            self._planned = None

    def _int32(self, length: int) -> torch.Tensor:
        return torch.zeros(length, dtype=torch.int32, device=self._device)


def _indptr(lens: HostArray) -> torch.Tensor:
    """[B + 1] int32 on the host, where plans read it."""
    starts = np.zeros(len(lens) + 1, dtype=np.int32)
    np.cumsum(lens, out=starts[1:])
    return torch.from_numpy(starts)


def _slots_of(
    batch: TensorBatch,
    table_rows: torch.Tensor,
    starts: torch.Tensor,
    lens: torch.Tensor,
    host_lens: HostArray,
) -> torch.Tensor:
    """Slots [N] int32 of positions [start, start + len) of the table's rows, side by side.

    host_lens, the same as lens, keeps torch from asking the device for the size.
    """
    total = int(host_lens.sum())
    lens = lens.to(torch.int64)
    before = lens.cumsum(0) - lens
    first = table_rows * batch.slot_table.shape[1] + starts - before
    places = torch.repeat_interleave(first, lens, output_size=total)
    places += torch.arange(total, device=places.device)
    return batch.slot_table.view(-1).index_select(0, places)
