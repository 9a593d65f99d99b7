"""Decode and prefill of a model: tokens per second, share of the device's peaks, host gap.

The host gap is the share of a step's time in which the device does not compute: one less the time
of the same work enqueued back to back, over the time of a step.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch

from runtime.srt.execution.cuda_executor import CudaExecutor
from runtime.srt.execution.cuda_graphs import GraphStep
from runtime.srt.execution.device_draw import greedy_ids
from runtime.srt.loading.model_config import ModelConfig
from runtime.srt.memory.kv_layout import bytes_per_token
from runtime.srt.server_args import ServerArgs

from .bench import Bench
from .models import LoadedModel, write_config
from .outcome import Row
from .sequences import Sequences, decode_overlapped, decode_serially

_DECODE_SHARE, _PREFILL_SHARE, _HOST_GAP = 0.8, 0.6, 0.03


def run(bench: Bench, shape: str, folder: Path | None, has_goals: bool) -> list[Row]:
    """A model of the shape with random weights, or the one in folder."""
    with tempfile.TemporaryDirectory() as made:
        if folder is None:
            config = write_config(Path(made), bench.pick("tiny", shape))
        else:
            config = ModelConfig.load(folder, {})
    batches = bench.pick((2,), (1, 64))
    context, num_steps = bench.pick((8, 3), (1024, 40))
    columns = context + 4 * num_steps
    prompts = bench.pick([5, 3], [2048] * 4)
    args = ServerArgs(
        max_total_tokens=max(max(batches) * columns, sum(prompts)),
        context_length=max(columns, *prompts),
    )
    loaded = LoadedModel.load(bench, config, folder, args, max(batches))
    rows = []
    eager, graphs = loaded.executor(has_graphs=False), loaded.executor(has_graphs=True)
    for num_rows in batches:
        sequences = Sequences(num_rows, columns)
        sequences.lens += context
        rows += _decode_rows(loaded, eager, graphs, sequences, num_steps, has_goals)
    rows.append(_prefill_row(loaded, eager, prompts, has_goals))
    return rows


def _decode_rows(
    loaded: LoadedModel,
    eager: CudaExecutor,
    graphs: CudaExecutor,
    sequences: Sequences,
    num_steps: int,
    has_goals: bool,
) -> list[Row]:
    bench, num_rows = loaded.bench, sequences.num_rows
    last = [3] * num_rows
    runs = (
        ("graphs, overlapped", graphs, decode_overlapped),
        ("graphs, serial", graphs, decode_serially),
        ("no graphs, overlapped", eager, decode_overlapped),
    )
    rows = []
    for name, executor, decode in runs:
        start = sequences.lens.copy()
        decode(executor, sequences, last, 2)  # compiles
        sequences.lens = start
        taken = bench.wall_seconds(lambda e=executor, d=decode: d(e, sequences, last, num_steps))  # type: ignore[misc]
        name = f"decode, {num_rows} rows, {name}"
        if taken is None:
            rows.append(Row(name, None, "tokens/s"))
            sequences.lens = start
            continue
        step = taken / num_steps
        context = float(start.mean()) + num_steps / 2
        kv_bytes = bytes_per_token(loaded.model.config, str(bench.dtype).removeprefix("torch."))
        moved = loaded.read_bytes + num_rows * context * kv_bytes
        is_main = executor is graphs and decode is decode_overlapped
        goal = _DECODE_SHARE if is_main and has_goals else None
        rows.append(
            Row(name, num_rows / step, "tokens/s", rate=moved / step, peak="bandwidth",
                share_goal=goal, note=f"{step * 1e3:.3f} ms a step")
        )  # fmt: skip
        if executor is graphs:
            gap = _host_gap(bench, graphs, num_rows, step)
            meets = gap <= _HOST_GAP if is_main else None
            rows.append(Row(f"host gap, {name.removeprefix('decode, ')}", gap * 100, "%",
                            meets_goal=meets))  # fmt: skip
        sequences.lens = start
    return rows


def _host_gap(bench: Bench, executor: CudaExecutor, num_rows: int, step: float) -> float:
    graphs = executor.graphs
    assert graphs is not None
    captured = GraphStep(min(one for one in graphs.sizes if one >= num_rows))

    @torch.inference_mode()
    def several_steps() -> None:
        for _ in range(10):
            hidden = graphs.replay(captured)
            greedy_ids(executor.model.compute_logits(hidden[:num_rows]))

    taken = bench.seconds_on(executor.streams.forward, several_steps)
    assert taken is not None
    return 1 - taken / 10 / step


def _prefill_row(
    loaded: LoadedModel, executor: CudaExecutor, lengths: list[int], has_goals: bool
) -> Row:
    bench, config = loaded.bench, loaded.model.config
    prompts = [[7] * length for length in lengths]

    def prefill() -> None:
        sequences = Sequences(len(lengths), max(lengths))
        executor.execute(sequences.step(prompts), sequences.sample_rows(), [])

    prefill()
    times = [bench.wall_seconds(prefill) for _ in range(bench.pick(1, 5))]
    name = f"prefill, {len(lengths)} rows of {max(lengths)}"
    known = sorted(one for one in times if one is not None)
    if not known:
        return Row(name, None, "tokens/s")
    taken = known[len(known) // 2]
    pairs = sum(length * (length + 1) / 2 for length in lengths)
    attention = 4 * pairs * config.num_heads * config.head_dim * config.num_layers
    flops = 2 * loaded.matrix_elements * sum(lengths) + attention
    return Row(
        name,
        sum(lengths) / taken,
        "tokens/s",
        rate=flops / taken,
        peak="flops",
        share_goal=_PREFILL_SHARE if has_goals else None,
        note=f"{taken * 1e3:.1f} ms",
    )
