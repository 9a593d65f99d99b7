"""Bench: the device of a run, tensors on it, and times of work enqueued on it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from runtime.srt.execution.device import CpuDevice, CudaDevice, Device, Stream

_WARM_UP_RUNS = 3
_CALLS_PER_GRAPH = 10
_cuda: Any = torch.cuda  # its events are untyped


class Bench:
    """is_interpreted: kernels run in Triton's interpreter on the CPU, in small, and nothing is
    timed.
    """

    def __init__(self, is_interpreted: bool) -> None:
        self.is_interpreted = is_interpreted
        self.device: Device = CpuDevice() if is_interpreted else CudaDevice()
        self.place = self.device.torch_device
        self._random = torch.Generator(self.place).manual_seed(0)

    @property
    def dtype(self) -> torch.dtype:
        """What speed is measured in; the interpreter computes products of bfloat16 wrongly."""
        return torch.float16 if self.is_interpreted else torch.bfloat16

    def normal(self, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Normally distributed values."""
        values = torch.randn(shape, generator=self._random, device=self.place)
        return values.to(dtype)

    def pick(self, small: Any, full: Any) -> Any:
        """small where kernels are interpreted, full on a GPU."""
        return small if self.is_interpreted else full

    def seconds(self, run: Callable[[], object], runs: int = 10) -> float | None:
        """Median time of run on the device; None if interpreted. run is called at least once."""
        if self.is_interpreted:
            run()
            return None
        for _ in range(_WARM_UP_RUNS):
            run()
        times: list[float] = []
        for _ in range(runs):
            began, ended = _cuda.Event(enable_timing=True), _cuda.Event(enable_timing=True)
            began.record()
            run()
            ended.record()
            ended.synchronize()
            times.append(float(began.elapsed_time(ended)) / 1e3)
        return statistics.median(times)

    def graph_seconds(self, run: Callable[[], object]) -> float | None:
        """seconds() of a captured run, so that what the host costs is left out."""
        if self.is_interpreted:
            return self.seconds(run)
        stream = self.device.new_stream("graph")

        def several() -> None:
            for _ in range(_CALLS_PER_GRAPH):
                run()

        self.device.synchronize()
        with self.device.running_on(stream):
            run()
        self.device.synchronize()
        graph = self.device.capture(several, stream, self.device.new_graph_memory())
        taken = self.seconds(graph.replay)
        return None if taken is None else taken / _CALLS_PER_GRAPH

    def seconds_on(self, stream: Stream, run: Callable[[], object]) -> float | None:
        """seconds() of run on a stream of the device."""
        with self.device.running_on(stream):
            return self.seconds(run)

    def wall_seconds(self, run: Callable[[], object]) -> float | None:
        """Time until run has returned and the device is idle; run once."""
        self.device.synchronize()
        began = time.perf_counter()
        run()
        self.device.synchronize()
        return None if self.is_interpreted else time.perf_counter() - began
