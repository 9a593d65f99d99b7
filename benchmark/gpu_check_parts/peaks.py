"""What the device reaches by itself: memory bandwidth and bfloat16 products, measured."""

from __future__ import annotations

import torch

from .bench import Bench
from .outcome import Row


def run(bench: Bench) -> list[Row]:
    """Bytes moved per second, the better of copying and reading; the best of large products."""
    return [
        Row("memory bandwidth", _scaled(_bandwidth(bench), 1e12), "TB/s"),
        Row("bf16 matrix products", _scaled(_flops(bench), 1e12), "TFLOP/s"),
    ]


def _bandwidth(bench: Bench) -> float | None:
    source = torch.zeros(bench.pick(1 << 12, 1 << 30), dtype=torch.int32, device=bench.place)
    target = torch.empty_like(source)
    copied = bench.seconds(lambda: target.copy_(source))
    read = bench.seconds(lambda: source.amax())
    if copied is None or read is None:
        return None
    return max(2 * source.nbytes / copied, source.nbytes / read)


def _flops(bench: Bench) -> float | None:
    best = None
    for size in bench.pick((64,), (4096, 8192, 16384)):
        a, b = (bench.normal(size, size, dtype=torch.bfloat16) for _ in range(2))
        out = torch.empty_like(a)
        taken = bench.seconds(lambda a=a, b=b, out=out: torch.mm(a, b, out=out))  # type: ignore[misc]
        if taken is not None:
            best = max(best or 0.0, 2 * size**3 / taken)
    return best


def _scaled(value: float | None, unit: float) -> float | None:
    return None if value is None else value / unit
