"""The machine's limits: how fast it reads memory, and multiplies bfloat16 matrices through torch.

Run as a program it prints one JSON object. The benchmark starts it so in every round, between the
servers, because both limits move with whatever else the machine does. Reading is a sum over a
buffer: of the size of the model's weights, part of which a large cache may hold, and of 1 GiB. The
matrix peak is the best of a few shapes through oneDNN, which uses AMX where the CPU has it.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F

GIB = 1 << 30
GEMM_SHAPES = ((512, 576, 1536), (1024, 1024, 1024), (2048, 2048, 2048))  # M, K, N


def measure_limits(weight_bytes: int, threads: int, repeats: int) -> dict[str, float]:
    """Return GiB/s and GFLOP/s by name, for 1 thread and for threads."""
    limits: dict[str, float] = {}
    for count in sorted({1, threads}):
        torch.set_num_threads(count)
        limits[f"read_weights_gib_{count}"] = _read_rate(weight_bytes, repeats)
        limits[f"read_1gib_gib_{count}"] = _read_rate(GIB, max(3, repeats // 2))
        limits[f"gemm_bf16_gflops_{count}"] = max(_gemm_rate(*s, repeats) for s in GEMM_SHAPES)
    return limits


def _read_rate(num_bytes: int, repeats: int) -> float:
    buffer = torch.ones(num_bytes // 4, dtype=torch.float32)
    return num_bytes / GIB / _best_seconds(lambda: buffer.sum(), repeats)


def _gemm_rate(m: int, k: int, n: int, repeats: int) -> float:
    x = torch.randn(m, k).to(torch.bfloat16)
    weight = torch.randn(n, k).to(torch.bfloat16)
    return 2e-9 * m * k * n / _best_seconds(lambda: F.linear(x, weight), repeats)


def _best_seconds(work: Callable[[], object], repeats: int) -> float:
    work()
    seconds = []
    for _ in range(repeats):
        started = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - started)
    return min(seconds)  # a limit: whatever disturbs a try only makes it slower


def main() -> None:
    """Print the limits as one JSON object."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--weight-bytes", type=int, default=270_000_000)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--repeats", type=int, default=9)
    options = parser.parse_args()
    with torch.inference_mode():
        limits = measure_limits(options.weight_bytes, options.threads, options.repeats)
    print(json.dumps(limits))


if __name__ == "__main__":
    main()
