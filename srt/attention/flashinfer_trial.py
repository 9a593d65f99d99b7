"""Whether FlashInfer works on this machine: one small step, before a server counts on it.

The package compiles its kernels when they are first planned. What that needs, nvcc among it, shows
then and not when the package is imported.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from ..execution.forward_batch import ForwardBatch
from ..loading.model_config import ModelConfig
from ..memory.kv_pool import KvPool
from .flashinfer_backend import FlashInferAttention
from .prefix_groups import PrefixGroup
from .tensor_batch import TensorBatch


@torch.inference_mode()
def try_out(
    attention: FlashInferAttention, config: ModelConfig, dtype: torch.dtype, device: torch.device
) -> None:
    """Run every kind of kernel that steps will use; raises whatever the package raises."""
    host = _two_that_decode_and_a_prompt()
    batch = TensorBatch.of(host, device)
    pool = KvPool(config, int(host.slot_table.max()) + 1, dtype, device)
    heads = (config.num_heads, config.num_kv_heads, config.num_kv_heads)
    shapes = [(host.num_tokens, one, config.head_dim) for one in heads]
    q, k, v = (torch.zeros(shape, dtype=dtype, device=device) for shape in shapes)
    ways: list[list[PrefixGroup]] = [[]]
    if not attention.is_deterministic:
        ways.append([PrefixGroup((0, 1), 1)])
    for groups in ways:
        attention.plan(batch, groups)
        attention.forward(q, k, v, 0, pool, batch)
    captured = replace(TensorBatch.of(_padding(), device), host=None)
    attention.plan_capture(2, captured)
    attention.prepare(captured)
    attention.forward(q[:2], k[:2], v[:2], 0, pool, captured)
    attention.forget_captures()


def _padding() -> ForwardBatch:
    """Two rows of a captured step that no request has."""
    return ForwardBatch(
        input_ids=np.zeros(2, dtype=np.int64),
        positions=np.zeros(2, dtype=np.int64),
        out_slots=np.zeros(2, dtype=np.int64),
        cu_query_lens=np.arange(3, dtype=np.int32),
        kv_lens=np.ones(2, dtype=np.int32),
        table_rows=np.zeros(2, dtype=np.int64),
        slot_table=np.zeros((1, 1), dtype=np.int32),
    )


def _two_that_decode_and_a_prompt() -> ForwardBatch:
    table = np.zeros((4, 2), dtype=np.int32)
    table[1:] = [[1, 2], [1, 3], [4, 5]]  # the first two share slot 1
    return ForwardBatch(
        input_ids=np.zeros(4, dtype=np.int64),
        positions=np.array([1, 1, 0, 1], dtype=np.int64),
        out_slots=np.array([2, 3, 4, 5], dtype=np.int64),
        cu_query_lens=np.array([0, 1, 2, 4], dtype=np.int32),
        kv_lens=np.array([2, 2, 2], dtype=np.int32),
        table_rows=np.array([1, 2, 3], dtype=np.int64),
        slot_table=table,
    )
