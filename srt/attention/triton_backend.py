"""Attention by the Triton kernels: decode rows split over their keys, prompts in tiles of queries.

Where several decoding rows share a long prefix it is read once for all of them. What a step needs
is worked out once, from the lengths that the host knows; nothing is read back from the device.
Kernels are told of pages of one slot: rows of scored choices mix slots of several places of a page.

Shape letters: T new tokens of all rows, B rows, H query heads, K kv heads, D head_dim.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch

from ..execution.forward_batch import ForwardBatch
from ..execution.packed_arrays import HostArray
from ..loading.model_config import ModelConfig
from ..memory.kv_pool import KvPool
from .graph_attention import StepForm
from .prefix_groups import PrefixGroup, find_prefix_groups
from .row_kinds import longest_query, num_leading_decode_rows
from .tensor_batch import TensorBatch
from .triton_kernels import TritonKernels

Upload = Callable[[Mapping[str, HostArray]], dict[str, torch.Tensor]]

# Parts of a row in deterministic mode, at least this long each; fewer would leave a GPU idle.
_FIXED_SPLITS = 32
_SMALLEST_FIXED_SPLIT_TOKENS = 256
# What a captured step must read less for another kernel in every layer to be worth it: an eighth of
# a millisecond at 4 TB/s. An estimate, not measured.
_LEAST_SAVED_BYTES = 512 << 20
# Of a captured step. More groups are not shared; parts of a prefix past its end cost little.
_MOST_GRAPH_GROUPS = 8
_MOST_GRAPH_PREFIX_SPLITS = 16


@dataclass(frozen=True, slots=True)
class _Extend:
    """The rows behind the decoding ones; their tensors begin at 0."""

    table_rows: torch.Tensor
    kv_lens: torch.Tensor
    cu_query_lens: torch.Tensor
    max_query_len: int


@dataclass(frozen=True, slots=True)
class _Shared:
    """The groups of the decoding rows as the kernel takes them, and the parts of a prefix."""

    groups: object
    num_prefix_splits: int


@dataclass(frozen=True, slots=True)
class _StepPlan:
    batch: TensorBatch
    num_decode: int
    num_splits: int
    shared: _Shared | None
    extend: _Extend | None


class TritonAttention:
    """A PrefixGraphAttention for steps of up to max_rows rows of up to max_context tokens.

    kv_bytes: of a token over all layers. is_deterministic: a row is cut into parts of one length in
    every step, so its bits do not depend on the rest of the batch; prefixes are not shared then.
    """

    name = "triton"

    def __init__(
        self,
        config: ModelConfig,
        kernels: TritonKernels,
        upload: Upload,
        device: torch.device,
        *,
        num_multiprocessors: int,
        max_rows: int,
        max_context: int,
        kv_bytes: int,
        is_deterministic: bool = False,
    ) -> None:
        self._config = config
        self._kernels = kernels
        self._upload = upload
        self._scale = 1.0 / math.sqrt(config.head_dim)
        self._num_multiprocessors = num_multiprocessors
        self._max_rows = max_rows
        self._max_context = max_context
        self._kv_bytes = kv_bytes
        self._split_tokens: int | None = None
        if is_deterministic:
            per_split = -(-max_context // _FIXED_SPLITS)
            self._split_tokens = max(_SMALLEST_FIXED_SPLIT_TOKENS, per_split)
        num_floats = max(self._workspace_floats(rows) for rows in range(1, max_rows + 1))
        self._workspace = torch.empty(num_floats, dtype=torch.float32, device=device)
        self._plan: _StepPlan | None = None
        self._groups: tuple[ForwardBatch, int, list[PrefixGroup]] | None = None

    def prepare(self, batch: TensorBatch) -> None:
        """Split the rows by kind. Without batch.host all rows decode, as in a captured step."""
        host = batch.host
        if host is None:
            self._plan = self._captured_plan(batch)
            return
        # Rows of one token beyond those that the workspace is for go the other way: few steps have
        # them, and that way takes any row.
        num_decode = min(num_leading_decode_rows(host), self._max_rows)
        own_lens = host.kv_lens[:num_decode].astype(np.int32)
        num_splits, shared = 0, None
        if groups := self._prefix_groups(host, num_decode):
            arrays = _group_arrays(groups, num_decode)
            own_lens = own_lens - arrays["prefix_lens"]
        if num_decode:
            num_splits = self._num_splits(num_decode, int(own_lens.max()))
        if groups:
            shared = _Shared(
                self._kernels.prefix_groups(**self._upload(arrays)),
                self._num_prefix_splits(
                    len(groups),
                    max(group.num_tokens for group in groups),
                    self._prefix_room(num_decode, num_splits),
                ),
            )
        extend = None
        if num_decode < host.num_rows:
            # The bound chooses the tiles, and with them the order of sums.
            longest = longest_query(host, num_decode) if self._split_tokens is None else None
            extend = _extend(batch, num_decode, longest or self._max_context)
        self._plan = _StepPlan(batch, num_decode, num_splits, shared, extend)

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
        plan = self._plan
        assert plan is not None and batch is plan.batch, "prepare(batch) must come first"
        k_pool, v_pool = kv_pool.k[layer], kv_pool.v[layer]
        self._kernels.store_kv(k, v, k_pool, v_pool, batch.out_slots)
        out = q.new_empty(q.shape)
        if plan.num_decode:
            rows = slice(0, plan.num_decode)
            self._decode(q[rows], k_pool, v_pool, batch, plan, out[rows])
        if plan.extend is not None:
            extend = plan.extend
            self._kernels.extend_attention(
                q[plan.num_decode :],
                k_pool,
                v_pool,
                batch.slot_table,
                extend.table_rows,
                extend.cu_query_lens,
                extend.kv_lens,
                out[plan.num_decode :],
                max_query_len=extend.max_query_len,
                scale=self._scale,
            )
        return out

    @property
    def shares_prefixes(self) -> bool:
        """See PrefixGraphAttention."""
        return self._split_tokens is None

    def choose_form(self, batch: ForwardBatch) -> StepForm:
        """See GraphAttention; a prefix is shared where that saves enough."""
        groups = self._graph_groups(batch)
        saved = sum(group.num_saved_tokens for group in groups)
        worth_it = saved * self._kv_bytes >= _LEAST_SAVED_BYTES
        return StepForm.SHARED_PREFIX if worth_it else StepForm.PLAIN

    def prefix_arrays(self, size: int, batch: ForwardBatch | None) -> dict[str, HostArray]:
        """See PrefixGraphAttention. Groups without rows make up the number."""
        arrays = _group_arrays([] if batch is None else self._graph_groups(batch), size)
        starts = arrays["cu_rows"]
        # The rows that share nothing are a group too.
        padding = np.full(_MOST_GRAPH_GROUPS + 2 - len(starts), size, dtype=np.int32)
        return {**arrays, "cu_rows": np.concatenate((starts, padding))}

    def plan_capture(self, size: int, batch: TensorBatch) -> None:
        """See GraphAttention; the grid follows from size alone."""

    def plan_replay(self, size: int, batch: ForwardBatch) -> None:
        """See GraphAttention; the lengths are read from the device."""

    def _decode(
        self,
        q: torch.Tensor,
        k_pool: torch.Tensor,
        v_pool: torch.Tensor,
        batch: TensorBatch,
        plan: _StepPlan,
        out: torch.Tensor,
    ) -> None:
        rows = slice(0, plan.num_decode)
        where = (batch.slot_table, batch.table_rows[rows], batch.kv_lens[rows])
        if plan.shared is None:
            self._kernels.decode_attention(
                q,
                k_pool,
                v_pool,
                *where,
                out,
                self._workspace,
                scale=self._scale,
                num_splits=plan.num_splits,
                split_tokens=self._split_tokens,
            )
            return
        self._kernels.shared_prefix_attention(
            q,
            k_pool,
            v_pool,
            *where,
            plan.shared.groups,
            out,
            self._workspace,
            scale=self._scale,
            num_prefix_splits=plan.shared.num_prefix_splits,
            num_splits=plan.num_splits,
        )

    def _captured_plan(self, batch: TensorBatch) -> _StepPlan:
        """For rows of any length, as many as batch has."""
        num_rows = len(batch.kv_lens)
        num_splits, shared = self._num_splits(num_rows), None
        if batch.prefix is not None:
            room = min(self._prefix_room(num_rows, num_splits), _MOST_GRAPH_PREFIX_SPLITS)
            shared = _Shared(
                self._kernels.prefix_groups(**batch.prefix),
                self._num_prefix_splits(1, self._max_context, room),
            )
        return _StepPlan(batch, num_rows, num_splits, shared, None)

    def _graph_groups(self, batch: ForwardBatch) -> list[PrefixGroup]:
        """The groups of a step of decoding rows that save most."""
        groups = self._prefix_groups(batch, batch.num_rows)
        groups = sorted(groups, key=lambda group: group.num_saved_tokens, reverse=True)
        return groups[:_MOST_GRAPH_GROUPS]

    def _prefix_groups(self, batch: ForwardBatch, num_rows: int) -> list[PrefixGroup]:
        """The step's groups, looked for once."""
        if self._split_tokens is not None:
            return []
        if self._groups is None or self._groups[0] is not batch or self._groups[1] != num_rows:
            self._groups = batch, num_rows, find_prefix_groups(batch, num_rows)
        return self._groups[2]

    def _num_splits(self, num_rows: int, longest: int | None = None) -> int:
        """Parts that a row is cut into; longest None: rows may have any length."""
        if self._split_tokens is not None:
            return -(-self._max_context // self._split_tokens)
        return self._kernels.choose_num_splits(
            num_rows,
            self._config.num_heads,
            self._config.num_kv_heads,
            self._num_multiprocessors,
            longest or self._max_context,
        )

    def _num_prefix_splits(self, num_groups: int, longest: int, room: int) -> int:
        """Parts that a group's prefix is cut into, at most room."""
        return max(1, min(self._num_splits(num_groups, longest), room))

    def _prefix_room(self, num_rows: int, num_splits: int) -> int:
        """Parts of prefixes that the workspace has room for beside num_splits of each row."""
        per_state = self._kernels.workspace_floats(
            num_rows, self._config.num_heads, 1, self._config.head_dim
        )
        return self._workspace.numel() // per_state - num_splits

    def _workspace_floats(self, num_rows: int) -> int:
        """For decoding num_rows rows, with a shared prefix in as many parts as their own."""
        num_states = self._num_splits(num_rows) * (1 if self._split_tokens else 2)
        return self._kernels.workspace_floats(
            num_rows, self._config.num_heads, num_states, self._config.head_dim
        )


def _extend(batch: TensorBatch, num_decode: int, max_query_len: int) -> _Extend:
    return _Extend(
        batch.table_rows[num_decode:],
        batch.kv_lens[num_decode:],
        batch.cu_query_lens[num_decode:] - num_decode,  # each row before has one token
        max_query_len,
    )


def _group_arrays(groups: list[PrefixGroup], num_rows: int) -> dict[str, HostArray]:
    """Every row in a group, side by side; those that share nothing are one without a prefix."""
    prefix_lens = np.zeros(num_rows, dtype=np.int32)
    for group in groups:
        prefix_lens[list(group.rows)] = group.num_tokens
    members = [list(group.rows) for group in groups]
    if alone := np.flatnonzero(prefix_lens == 0).tolist():
        members.append(alone)
    starts = np.zeros(len(members) + 1, dtype=np.int32)
    np.cumsum([len(rows) for rows in members], out=starts[1:])
    return {
        "rows": np.array([row for rows in members for row in rows], dtype=np.int32),
        "cu_rows": starts,
        "prefix_lens": prefix_lens,
    }
