"""Compiles the kernels that a wrapper launches, for a GPU that is not there.

The wrapper is called with tensors on the meta device. Each launch it makes goes through Triton's
own argument binding and compiler, so what is compiled is what that call would run on the GPU; only
the launch itself is left out.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from runtime.kernels.triton import launch_table

# Triton's own, even if this is called while kernels are interpreted.
_BIND_AND_COMPILE: Any = JITFunction.run
_WARP_SIZE = 32
_MATRIX_INSTRUCTIONS = ("tcgen05.mma", "wgmma.mma_async", "mma.sync")


@dataclass(frozen=True, slots=True)
class KernelLaunch:
    """A call of a wrapper on tensors of device "meta", as compile_launches takes it.

    on_hopper is the matrix unit that each kernel of the call must use on capability 9.0, if any.
    """

    name: str
    call: Callable[[], object]
    on_hopper: str | None = None


@dataclass(frozen=True, slots=True)
class CompiledKernel:
    """What one compiled kernel takes of a multiprocessor; bytes are per thread but for shared."""

    kernel: str
    registers: int
    stack_bytes: int
    local_bytes: int
    shared_bytes: int
    matrix_unit: str  # "wgmma", "mma", "tcgen05", or "" where there are no matrix products


def compile_launches(call: Callable[[], object], capability: int) -> list[CompiledKernel]:
    """Compile every kernel that call launches for sm_<capability>, in the order of the launches.

    call uses tensors of device "meta". Raises what Triton raises for a kernel that does not
    compile, with the kernel's name.
    """
    compiled: list[CompiledKernel] = []

    def compile_only(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        try:
            kernel = _BIND_AND_COMPILE(self, *args, grid=grid, warmup=True, **kwargs)
        except Exception as error:
            error.add_note(f"while compiling {self.fn.__name__} for sm_{capability}")
            raise
        compiled.append(_facts(self.fn.__name__, kernel))

    with (
        _pretended_gpu(capability),
        mock.patch.object(JITFunction, "run", compile_only),
    ):
        call()
    return compiled


class _AbsentGpu:
    """As much of a Triton driver as compiling asks for."""

    def __init__(self, capability: int) -> None:
        self._capability = capability

    def get_current_device(self) -> int:
        return self._capability  # Triton caches kernels by device

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self._capability, _WARP_SIZE)


@contextmanager
def _pretended_gpu(capability: int) -> Iterator[None]:
    def pretended(device: object) -> int:
        return capability

    with (
        mock.patch.object(driver, "_active", _AbsentGpu(capability)),
        mock.patch.object(launch_table, "capability", pretended),
    ):
        yield


def _facts(name: str, kernel: Any) -> CompiledKernel:
    usage = _resource_usage(kernel.asm["cubin"])
    found = [unit for unit in _MATRIX_INSTRUCTIONS if unit in kernel.asm["ptx"]]
    return CompiledKernel(
        kernel=name,
        registers=usage["REG"],
        stack_bytes=usage["STACK"],
        local_bytes=usage["LOCAL"],
        shared_bytes=kernel.metadata.shared,
        matrix_unit=found[0].partition(".")[0] if found else "",
    )


def _resource_usage(cubin: bytes) -> dict[str, int]:
    """What cuobjdump says, as {"REG": 64, "STACK": 0, ...}."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [triton.knobs.nvidia.cuobjdump.path, "-res-usage", file.name]
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    line = next(line for line in text.splitlines() if "REG:" in line)
    return {name: int(value) for name, value in re.findall(r"([A-Z]+):(\d+)", line)}
