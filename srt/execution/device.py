"""Device: streams, events, pinned memory, graphs and memory figures.

The only file that knows how a GPU runs: work is enqueued on streams and done later, and the host
learns of it through events. CpuDevice does everything at once, so that the same execution code runs
and is tested on a machine without a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch

from .host_limits import free_memory_bytes

_cuda: Any = torch.cuda  # its streams, events and graphs are untyped


class Event(Protocol):
    """A point in a stream."""

    def is_done(self) -> bool:
        """Whether all before this point has been done; does not wait."""
        ...

    def wait_on_host(self) -> None:
        """Block the calling thread until all before this point has been done."""
        ...


class Stream(Protocol):
    """Work that a device does in the order in which it was enqueued."""

    def record(self) -> Event:
        """The point after all that has been enqueued so far."""
        ...

    def wait_for(self, event: Event) -> None:
        """Let what is enqueued from now on run after event; the host goes on at once."""
        ...


class Graph(Protocol):
    """Captured work, with the addresses that it had then."""

    def replay(self) -> None:
        """Enqueue it on the current stream."""
        ...


class Device(Protocol):
    """Where a model runs."""

    torch_device: torch.device
    num_multiprocessors: int

    def is_out_of_memory(self, error: BaseException) -> bool:
        """Whether error is what an allocation that fails raises."""
        ...

    def new_stream(self, name: str) -> Stream: ...

    def running_on(self, stream: Stream) -> AbstractContextManager[Any]:
        """Inside it torch's operations are enqueued on stream."""
        ...

    def host_buffer(self, num_bytes: int) -> torch.Tensor:
        """[num_bytes] uint8 on the host that the device copies from and to without waiting."""
        ...

    def copy(self, destination: torch.Tensor, source: torch.Tensor) -> None:
        """Enqueue a copy on the current stream; a host_buffer may be on either side."""
        ...

    def new_graph_memory(self) -> object:
        """Memory that several graphs share, of which one is replayed at a time."""
        ...

    def capture(self, run: Callable[[], None], stream: Stream, memory: object) -> Graph:
        """Record what run enqueues; its temporaries stand in memory of new_graph_memory().

        run must have been run on stream before: what a first call allocates or compiles must not
        be captured. It may not wait for the device.
        """
        ...

    def free_bytes(self) -> int:
        """Memory that is not allocated, cached blocks given back first."""
        ...

    def peak_bytes(self, run: Callable[[], None]) -> int:
        """How much more memory than before was taken at the worst moment of run."""
        ...

    def synchronize(self) -> None:
        """Wait until all streams are empty: at starts and ends, never in a step."""
        ...


class CpuDevice:
    """A Device that has done everything before a call returns."""

    num_multiprocessors = 1

    def __init__(self) -> None:
        self.torch_device = torch.device("cpu")

    def is_out_of_memory(self, error: BaseException) -> bool:
        return isinstance(error, MemoryError)

    def new_stream(self, name: str) -> Stream:
        return _DoneStream()

    def running_on(self, stream: Stream) -> AbstractContextManager[Any]:
        return nullcontext()

    def host_buffer(self, num_bytes: int) -> torch.Tensor:
        return torch.zeros(num_bytes, dtype=torch.uint8)

    def copy(self, destination: torch.Tensor, source: torch.Tensor) -> None:
        destination.copy_(source)

    def new_graph_memory(self) -> object:
        return None

    def capture(self, run: Callable[[], None], stream: Stream, memory: object) -> Graph:
        return _RunAgain(run)

    def free_bytes(self) -> int:
        return free_memory_bytes()

    def peak_bytes(self, run: Callable[[], None]) -> int:
        run()
        return 0

    def synchronize(self) -> None:
        pass


class _DoneEvent:
    def is_done(self) -> bool:
        return True

    def wait_on_host(self) -> None:
        pass


class _DoneStream:
    def record(self) -> Event:
        return _DoneEvent()

    def wait_for(self, event: Event) -> None:
        pass


class _RunAgain:
    def __init__(self, run: Callable[[], None]) -> None:
        self._run = run

    def replay(self) -> None:
        self._run()


# What the driver, cuBLAS and Triton say, which have no type of their own for it; cuBLAS often fails
# to begin where there is no room for its workspace.
_NO_MEMORY = ("out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "CUBLAS_STATUS_NOT_INITIALIZED")


def is_cuda_out_of_memory(error: BaseException | None) -> bool:
    """Whether error, or what it was raised in the handling of, is an allocation that failed.

    A capture that fails is ended in an exception handler, whose own error hides the first one.
    """
    while error is not None:
        if isinstance(error, torch.OutOfMemoryError):
            return True
        if isinstance(error, RuntimeError) and any(one in str(error) for one in _NO_MEMORY):
            return True
        error = error.__cause__ or error.__context__
    return False


class CudaDevice:
    """One NVIDIA GPU. To be made only where torch.cuda.is_available()."""

    def __init__(self, index: int = 0) -> None:
        self.torch_device = torch.device("cuda", index)
        torch.cuda.set_device(self.torch_device)
        properties = torch.cuda.get_device_properties(self.torch_device)
        self.num_multiprocessors = int(properties.multi_processor_count)

    def is_out_of_memory(self, error: BaseException) -> bool:
        return is_cuda_out_of_memory(error)

    def new_stream(self, name: str) -> Stream:
        return _CudaStream(self.torch_device)

    def running_on(self, stream: Stream) -> AbstractContextManager[Any]:
        assert isinstance(stream, _CudaStream)
        context: AbstractContextManager[Any] = torch.cuda.stream(stream.cuda)
        return context

    def host_buffer(self, num_bytes: int) -> torch.Tensor:
        return torch.zeros(num_bytes, dtype=torch.uint8, pin_memory=True)

    def copy(self, destination: torch.Tensor, source: torch.Tensor) -> None:
        destination.copy_(source, non_blocking=True)

    def new_graph_memory(self) -> object:
        handle: object = _cuda.graph_pool_handle()
        return handle

    def capture(self, run: Callable[[], None], stream: Stream, memory: object) -> Graph:
        assert isinstance(stream, _CudaStream)
        graph: Graph = _cuda.CUDAGraph()
        # thread_local: another thread that touches the device must not spoil the capture.
        with _cuda.graph(
            graph,
            pool=memory,
            stream=stream.cuda,
            capture_error_mode="thread_local",
        ):
            run()
        return graph

    def free_bytes(self) -> int:
        torch.cuda.synchronize(self.torch_device)
        torch.cuda.empty_cache()
        return int(torch.cuda.mem_get_info(self.torch_device)[0])

    def peak_bytes(self, run: Callable[[], None]) -> int:
        self.free_bytes()
        before = torch.cuda.memory_reserved(self.torch_device)
        torch.cuda.reset_peak_memory_stats(self.torch_device)
        run()
        torch.cuda.synchronize(self.torch_device)
        # Reserved, not allocated: what fragmentation costs counts too.
        return int(torch.cuda.max_memory_reserved(self.torch_device)) - before

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.torch_device)


class _CudaEvent:
    def __init__(self, stream: Any) -> None:
        self.cuda = _cuda.Event()
        self.cuda.record(stream)

    def is_done(self) -> bool:
        return bool(self.cuda.query())

    def wait_on_host(self) -> None:
        self.cuda.synchronize()


class _CudaStream:
    def __init__(self, device: torch.device) -> None:
        self.cuda = _cuda.Stream(device)

    def record(self) -> Event:
        return _CudaEvent(self.cuda)

    def wait_for(self, event: Event) -> None:
        assert isinstance(event, _CudaEvent)
        self.cuda.wait_event(event.cuda)
