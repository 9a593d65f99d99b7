"""Kernel benchmark of the CPU engine: what share of this machine's own limits each part reaches.

    python benchmark/cpu_kernels.py [--threads 2] [--quick]

Limits are measured in the same run with the same threads: memory read bandwidth, and bf16 tile
arithmetic from registers (8-bit tiles do twice as much).
Shapes are those of SmolLM2-135M with random weights. Times are minima of short runs, so a busy
machine shows less noise; ratios within one run are the result, not milliseconds.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import cycle

import torch

from runtime.kernels.cpu.abi_types import DType, Level, TensorId, WeightFormat
from runtime.kernels.cpu.library import CpuModel, CpuModelConfig, StepInput

SHAPES = ((TensorId.Q, 576, 576), (TensorId.GATE, 1536, 576), (TensorId.DOWN, 576, 1536))
PROMPTS = (512, 2048)
BATCHES = (1, 8, 32)
CONTEXT = 200
SHARED_PREFIX = 1500
BLOCK_LAYERS = 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--threads", type=int, default=2, help="threads of the engine (2)")
    parser.add_argument("--quick", action="store_true", help="fewer repetitions")
    args = parser.parse_args()
    torch.set_num_threads(1)
    repeats = 3 if args.quick else 9
    config = smollm2_config(args.threads)
    for form in WeightFormat:
        model = random_engine(config, form)
        print(f"\n== {form.name}: {model.level.name}, {args.threads} threads, "
              f"{model.weight_bytes / 1e6:.0f} MB of weights")  # fmt: skip
        limits = model.measure_limits()
        bandwidth, peak = limits.read_bandwidth, limits.peak_flops
        print(f"limits in this run: read {bandwidth / 1e9:.1f} GB/s, {peak / 1e12:.2f} TFLOP/s")
        linear_table(model, config, bandwidth, peak, repeats)
        step_table(model, config, bandwidth, repeats)
    block_table(args.threads, repeats)
    attention_table(args.threads, repeats)


def smollm2_config(threads: int) -> CpuModelConfig:
    return CpuModelConfig(
        num_layers=30,
        hidden_size=576,
        intermediate_size=1536,
        num_heads=9,
        num_kv_heads=3,
        head_dim=64,
        vocab_size=49152,
        max_positions=8192,
        rms_eps=1e-5,
        tied_embeddings=True,
        num_threads=threads,
    )


def random_engine(c: CpuModelConfig, form: WeightFormat) -> CpuModel:
    """An engine with random weights of the given form; norms and rope tables are plain."""
    model = CpuModel(c)
    q_width, kv_width = c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim
    sizes = {
        TensorId.Q: (q_width, c.hidden_size),
        TensorId.K: (kv_width, c.hidden_size),
        TensorId.V: (kv_width, c.hidden_size),
        TensorId.O: (c.hidden_size, q_width),
        TensorId.GATE: (c.intermediate_size, c.hidden_size),
        TensorId.UP: (c.intermediate_size, c.hidden_size),
        TensorId.DOWN: (c.hidden_size, c.intermediate_size),
    }
    model.set_tensor(
        TensorId.EMBEDDING, torch.randn(c.vocab_size, c.hidden_size).bfloat16(), -1, form
    )
    model.set_tensor(TensorId.FINAL_NORM, torch.ones(c.hidden_size))
    angles = torch.arange(c.max_positions)[:, None] * 1e4 ** -(torch.arange(32) / 32)
    model.set_tensor(TensorId.ROPE_COS, angles.cos().float())
    model.set_tensor(TensorId.ROPE_SIN, angles.sin().float())
    for layer in range(c.num_layers):
        model.set_tensor(TensorId.ATTN_NORM, torch.ones(c.hidden_size), layer)
        model.set_tensor(TensorId.MLP_NORM, torch.ones(c.hidden_size), layer)
        for tensor, (rows, cols) in sizes.items():
            weight = torch.randn(rows, cols) * cols**-0.5
            model.set_tensor(tensor, weight.bfloat16(), layer, form)
    model.finalize()
    return model


def total_weights(c: CpuModelConfig) -> int:
    kv_width = c.num_kv_heads * c.head_dim
    layer = c.hidden_size * (2 * c.hidden_size + 2 * kv_width + 3 * c.intermediate_size)
    return c.vocab_size * c.hidden_size + c.num_layers * layer


def linear_table(
    model: CpuModel, c: CpuModelConfig, bandwidth: float, peak: float, repeats: int
) -> None:
    print(f"{'linear':>12} {'M':>5} {'us':>9} {'GFLOP/s':>9} {'of peak':>8} {'of read':>8}")
    bytes_per_weight = model.weight_bytes / total_weights(c)
    for tensor, n, k in SHAPES:
        for m in (1, 16, 32, 64, 256):
            x = torch.randn(m, k)
            # Layers in turn, so that the weights are not left over from the last call.
            layers = cycle(range(c.num_layers))

            def call(x: torch.Tensor = x, t: TensorId = tensor, on: cycle[int] = layers) -> None:
                model.linear(t, x, next(on))

            seconds = best_seconds(call, (60 if m < 64 else 20) * repeats // 3)
            flops = 2 * m * n * k / seconds
            read = n * k * bytes_per_weight / seconds
            print(f"{k:>6}x{n:<5} {m:>5} {seconds * 1e6:>9.1f} {flops / 1e9:>9.0f} "
                  f"{flops / peak:>8.0%} {read / bandwidth:>8.0%}")  # fmt: skip


def block_table(threads: int, repeats: int) -> None:
    """GGUF blocks beside bf16 in turns, on one layer whose size blocks of 256 divide."""
    sizes = {DType.Q4_0: (32, 18), DType.Q4_1: (32, 20), DType.Q5_0: (32, 22), DType.Q8_0: (32, 34),
             DType.Q4_K: (256, 144), DType.Q5_K: (256, 176), DType.Q6_K: (256, 210)}  # fmt: skip
    n = k = 2048
    config = replace(
        smollm2_config(threads), hidden_size=k, intermediate_size=n, num_layers=BLOCK_LAYERS
    )
    models = {"bf16": CpuModel(config)}
    for layer in range(BLOCK_LAYERS):
        models["bf16"].set_tensor(TensorId.GATE, torch.randn(n, k).bfloat16(), layer)
    for dtype, (values, num_bytes) in sizes.items():
        models[dtype.name] = CpuModel(config)
        # Bytes below 60 make small positive scales.
        blocks = torch.randint(0, 60, (n, k // values * num_bytes), dtype=torch.uint8)
        for layer in range(BLOCK_LAYERS):
            models[dtype.name].set_blocks(TensorId.GATE, blocks, dtype, k, layer)
    print(f"\n== GGUF blocks, {k}x{n}, over the time of bf16")
    print("    M " + " ".join(f"{name:>6}" for name in models))
    for m in (1, 8, 16, 32, 128, 512):
        x = torch.randn(m, k)
        best = dict.fromkeys(models, float("inf"))
        for _ in range(repeats):
            for name, model in models.items():
                layers = iter(range(BLOCK_LAYERS))
                seconds = best_seconds(
                    lambda x=x, on=layers, of=model: of.linear(TensorId.GATE, x, next(on)),  # type: ignore[misc]
                    BLOCK_LAYERS - 1,
                )
                best[name] = min(best[name], seconds)
        print(f"{m:>5} " + " ".join(f"{best[name] / best['bf16']:>6.2f}" for name in models))


def attention_table(threads: int, repeats: int) -> None:
    """Steps of layers that are almost attention alone, at every level, by type of the KV pool."""
    config = replace(
        smollm2_config(threads),
        num_layers=BLOCK_LAYERS,
        hidden_size=64,
        intermediate_size=64,
        vocab_size=256,
    )
    batches = {
        f"prompt {PROMPTS[0]}": one_prompt(PROMPTS[0], 256),
        "1 row, 8000": decode_rows(1, 8000 - CONTEXT, 256),
        f"32 rows, {SHARED_PREFIX} shared": decode_rows(32, SHARED_PREFIX, 256),
    }
    print(f"\n== attention, milliseconds for {BLOCK_LAYERS} layers")
    print(f"{'level':>12} {'KV':>5} " + " ".join(f"{name:>22}" for name in batches))
    best_level = CpuModel(config).level
    for level in (one for one in Level if 0 <= one <= best_level):
        forms = {}
        for kv_dtype in (DType.BF16, DType.I8):
            c = replace(config, level=level, kv_dtype=kv_dtype)
            item = torch.int8 if kv_dtype == DType.I8 else torch.bfloat16
            pools = [torch.zeros(c.pool_shape(12288), dtype=item) for _ in range(2)]
            forms[kv_dtype] = (random_engine(c, WeightFormat.KEEP), pools)
        best: dict[tuple[DType, str], float] = {}
        for _ in range(repeats):  # in turns
            for name, batch in batches.items():
                for kv_dtype, (model, pools) in forms.items():
                    seconds = best_seconds(lambda m=model, b=batch, p=pools: run(m, b, *p), 1)  # type: ignore[misc]
                    place = kv_dtype, name
                    best[place] = min(best.get(place, seconds), seconds)
        for kv_dtype in forms:
            times = " ".join(f"{best[kv_dtype, name] * 1e3:>22.2f}" for name in batches)
            print(f"{level.name:>12} {kv_dtype.name:>5} {times}")


def step_table(model: CpuModel, c: CpuModelConfig, bandwidth: float, repeats: int) -> None:
    shape = (c.num_layers, 12288, c.num_kv_heads, c.head_dim)
    k_pool, v_pool = (
        torch.zeros(shape, dtype=torch.bfloat16),
        torch.zeros(shape, dtype=torch.bfloat16),
    )
    floor = model.weight_bytes / bandwidth
    for length in PROMPTS:
        batch = one_prompt(length, c.vocab_size)
        seconds = best_seconds(lambda b=batch: run(model, b, k_pool, v_pool), repeats)  # type: ignore[misc]
        print(f"prefill {length:>5} tokens: {seconds * 1e3:8.1f} ms, {length / seconds:7.0f} tok/s")
    for rows in BATCHES:
        for shared in (0, SHARED_PREFIX):
            if shared and rows == 1:
                continue
            batch = decode_rows(rows, shared, c.vocab_size)
            seconds = best_seconds(lambda b=batch: run(model, b, k_pool, v_pool), 2 * repeats)  # type: ignore[misc]
            what = f"{shared} shared + {CONTEXT}" if shared else f"{CONTEXT}"
            print(f"decode {rows:>3} rows, context {what:>17}: {seconds * 1e3:7.1f} ms, "
                  f"{rows / seconds:6.0f} tok/s, weights' floor {floor / seconds:.0%}")  # fmt: skip


def run(model: CpuModel, batch: StepInput, k_pool: torch.Tensor, v_pool: torch.Tensor) -> None:
    last = torch.as_tensor(batch.cu_query_lens[1:] - 1).contiguous()
    argmax = torch.empty(last.shape[0], dtype=torch.int32)
    model.step(batch, k_pool, v_pool, last, argmax=argmax)


def one_prompt(length: int, vocab_size: int) -> StepInput:
    slots = torch.arange(1, length + 1)
    return StepInput(
        input_ids=torch.randint(0, vocab_size, (length,)),
        positions=torch.arange(length),
        out_slots=slots,
        cu_query_lens=torch.tensor([0, length], dtype=torch.int32),
        kv_lens=torch.tensor([length], dtype=torch.int32),
        table_rows=torch.zeros(1, dtype=torch.int64),
        slot_table=slots.to(torch.int32)[None],
    )


def decode_rows(rows: int, shared: int, vocab_size: int) -> StepInput:
    """One new token for each row after CONTEXT tokens of its own and `shared` common ones."""
    own = shared + 1 + torch.arange(rows * CONTEXT).view(rows, CONTEXT)
    common = torch.arange(1, shared + 1).expand(rows, shared)
    table = torch.cat([common, own], 1).to(torch.int32).contiguous()
    length = shared + CONTEXT
    return StepInput(
        input_ids=torch.randint(0, vocab_size, (rows,)),
        positions=torch.full((rows,), length - 1),
        out_slots=table[:, -1].long(),
        cu_query_lens=torch.arange(rows + 1, dtype=torch.int32),
        kv_lens=torch.full((rows,), length, dtype=torch.int32),
        table_rows=torch.arange(rows),
        slot_table=table,
    )


def best_seconds(call: Callable[[], object], repeats: int) -> float:
    call()
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - start)
    return best


if __name__ == "__main__":
    main()
