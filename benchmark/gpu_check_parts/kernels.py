"""Every kernel against its reference, case by case; one that fails does not end the others."""

from __future__ import annotations

import time
from collections.abc import Iterator

from .attention_checks import Check, attention_checks
from .bench import Bench
from .outcome import Row
from .step_kernel_checks import step_kernel_checks

_CUDA_IS_LOST = "illegal memory access"


def run(bench: Bench, shard: int, num_shards: int) -> Iterator[Row]:
    """A row per case; every num_shards-th case from shard on."""
    cases = [*step_kernel_checks(bench), *attention_checks(bench)]
    for kernel, case, check in cases[shard::num_shards]:
        yield _checked(bench, kernel, case, check)


def _checked(bench: Bench, kernel: str, case: str, check: Check) -> Row:
    began = time.perf_counter()
    try:
        error = check()
        bench.device.synchronize()
    except Exception as failure:  # whatever a kernel raises is what this case found
        if _CUDA_IS_LOST in str(failure):
            raise  # nothing can be computed in this process any more
        text = f"{case}: {type(failure).__name__}: {failure}"
        return Row(case, is_right=False, note=text[:500], group=kernel)
    seconds = time.perf_counter() - began
    is_right = error <= 1.0  # false for NaN
    note = f"{case}: {seconds:.1f} s" if is_right else f"{case}: {error:.3g} x tolerance"
    return Row(case, error, "x tolerance", is_right=is_right, note=note, group=kernel)
