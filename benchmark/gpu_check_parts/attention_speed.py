"""Decode attention of a layer in the shape of Llama-3.1-8B: Triton, and FlashInfer if there."""

from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path

import torch

from runtime.srt.attention.tensor_batch import TensorBatch
from runtime.srt.execution.cuda_executor import DeviceStreams
from runtime.srt.execution.gpu_parts import gpu_parts
from runtime.srt.loading.model_config import ModelConfig
from runtime.srt.memory.kv_pool import KvPool
from runtime.srt.server_args import ServerArgs

from .bench import Bench
from .models import write_config
from .outcome import Row
from .sequences import Sequences
from .stand_ins import is_installed

_ALLOWED_RATIO = 1.1  # of FlashInfer's time


def run(bench: Bench) -> tuple[list[Row], list[str]]:
    """Rows, and what was left out."""
    with tempfile.TemporaryDirectory() as folder:
        config = write_config(Path(folder), bench.pick("tiny", "Llama-3.1-8B"))
    contexts = bench.pick((20,), (1024, 8192))
    cases = [(num_rows, context) for num_rows in bench.pick((2,), (1, 64)) for context in contexts]
    has_flashinfer = not bench.is_interpreted and is_installed("flashinfer")
    rows = []
    for num_rows, context in cases:
        name = f"decode attention, {num_rows} rows of {context}"
        ours = _seconds(bench, config, "auto", num_rows, context)
        moved = num_rows * context * 2 * config.num_kv_heads * config.head_dim * 2
        if ours is None:
            rows.append(Row(name, None, "us"))
            continue
        rows.append(Row(name, ours * 1e6, "us", rate=moved / ours, peak="bandwidth"))
        if has_flashinfer:
            theirs = _seconds(bench, config, "flashinfer", num_rows, context)
            assert theirs is not None
            ratio = ours / theirs
            meets, note = ratio <= _ALLOWED_RATIO, f"{theirs * 1e6:.1f} us"
            rows.append(Row(f"{name}, over flashinfer's", ratio, "x", meets_goal=meets, note=note))
    return rows, [] if has_flashinfer else ["flashinfer: not compared with, it is not installed"]


@torch.inference_mode()
def _seconds(
    bench: Bench, config: ModelConfig, backend: str, num_rows: int, context: int
) -> float | None:
    """Of one layer's attention, its KV store included."""
    dtype = str(bench.dtype).removeprefix("torch.")
    args = ServerArgs(
        device=bench.pick("auto", "cuda"),
        attention_backend=backend,
        context_length=context + 1,
    )
    streams = DeviceStreams(bench.device)
    parts = gpu_parts(bench.device, config, args, dtype)
    attention = parts.make_attention(num_rows, streams.copy, streams.forward)
    pool = _one_layer_pool(bench, config, num_rows * (context + 1) + 1)
    sequences = Sequences(num_rows, context + 1)
    sequences.lens += context - 1
    batch = TensorBatch.of(sequences.step([[0]] * num_rows), bench.place)
    heads, kv_heads, dim = config.num_heads, config.num_kv_heads, config.head_dim
    q = bench.normal(num_rows, heads, dim, dtype=bench.dtype)
    k, v = (bench.normal(num_rows, kv_heads, dim, dtype=bench.dtype) for _ in range(2))
    attention.prepare(batch)
    return bench.graph_seconds(lambda: attention.forward(q, k, v, 0, pool, batch))


def _one_layer_pool(bench: Bench, config: ModelConfig, num_slots: int) -> KvPool:
    pool = KvPool(dataclasses.replace(config, num_layers=1), num_slots, bench.dtype, bench.place)
    pool.k.normal_()
    pool.v.normal_()
    return pool
