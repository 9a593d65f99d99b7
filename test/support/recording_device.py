"""A Device that does what a real one may do at worst, on the CPU.

Copies are done as late as events allow, so that who does not wait reads stale data, or overwrites a
buffer that is still on its way. A device buffer may be overwritten only after an event that follows
its last reader. A graph's replay must meet the addresses, shapes and types of its capture. Host
waits are counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

GRAPH_BYTES = 1000


class OutOfMemory(Exception):
    """An allocation that fails."""


@dataclass
class _Event:
    stream: RecordingStream
    position: int

    def is_done(self) -> bool:
        return self.stream.num_done >= self.position

    def wait_on_host(self) -> None:
        if not self.is_done():
            self.stream.device.host_waits.append(self.stream.name)
        self.stream.run_until(self.position)


@dataclass
class RecordingStream:
    """Copies that are not done yet, in order; position counts all that was ever enqueued."""

    device: RecordingDevice
    name: str
    pending: list[Callable[[], None]] = field(default_factory=list)
    position: int = 0
    num_done: int = 0
    num_records: int = 0
    seen_records: dict[str, int] = field(default_factory=dict)  # of other streams, waited for

    def enqueue(self, copy: Callable[[], None]) -> None:
        self.pending.append(copy)
        self.position += 1

    def record(self) -> _Event:
        # A point is passed later than what stands before it, even if that is nothing.
        self.enqueue(lambda: None)
        self.num_records += 1
        event = _Event(self, self.position)
        self.device.record_numbers[id(event)] = self.num_records
        self.device.events.append(event)
        return event

    def wait_for(self, event: _Event) -> None:
        self.seen_records[event.stream.name] = self.device.record_numbers[id(event)]
        event.stream.run_until(event.position)
        self.device.readers_may_hold(event.stream, self)

    def run_until(self, position: int) -> None:
        while self.num_done < position:
            self.pending.pop(0)()
            self.num_done += 1


class RecordingDevice:
    """free: what free_bytes() says, of which each capture takes GRAPH_BYTES; peak: peak_bytes()."""

    num_multiprocessors = 4

    def __init__(self, free: int = 1 << 40, peak: int = 0) -> None:
        self.torch_device = torch.device("cpu")
        self.free = free
        self.peak = peak
        self.host_waits: list[str] = []
        self.num_synchronized = 0
        self.num_replays = 0
        self.captured = 0
        self.events: list[_Event] = []  # kept, so that their ids stay theirs
        self.record_numbers: dict[int, int] = {}
        self._current: list[RecordingStream] = []
        self._streams: list[RecordingStream] = []
        self._host: list[torch.Tensor] = []  # pinned memory, kept: its addresses stay its own
        # Address of a device buffer -> stream that reads it, and its records when it began to.
        self._held: dict[int, tuple[RecordingStream, int]] = {}
        self._uploaded: dict[str, list[int]] = {}

    def is_out_of_memory(self, error: BaseException) -> bool:
        return isinstance(error, OutOfMemory)

    def new_stream(self, name: str) -> Any:
        self._streams.append(RecordingStream(self, name))
        return self._streams[-1]

    @contextmanager
    def _on(self, stream: RecordingStream) -> Iterator[None]:
        self._current.append(stream)
        try:
            yield
        finally:
            self._current.pop()

    def running_on(self, stream: Any) -> AbstractContextManager[Any]:
        return self._on(stream)

    def host_buffer(self, num_bytes: int) -> torch.Tensor:
        buffer = torch.full((num_bytes,), 0xEE, dtype=torch.uint8)
        self._host.append(buffer)
        return buffer

    def copy(self, destination: torch.Tensor, source: torch.Tensor) -> None:
        stream = self._current[-1]
        is_up, is_down = self._is_pinned(source), self._is_pinned(destination)
        if not is_up and not is_down:
            if source.data_ptr() in self._uploaded.get(stream.name, []):
                stream.enqueue(lambda: _copy(destination, source))  # behind the upload
            else:
                destination.copy_(source)
            return
        assert destination.dtype == source.dtype, "torch would convert this on the host"
        assert destination.is_contiguous() and source.is_contiguous()
        if is_up:
            self._check_unread(stream, destination.data_ptr())
            self._uploaded.setdefault(stream.name, []).append(destination.data_ptr())
            stream.enqueue(lambda: _copy(destination, source))
        else:
            # What is computed now is what the copy finds, even if its memory is used again.
            kept = source.clone()
            stream.enqueue(lambda: _copy(destination, kept))

    def new_graph_memory(self) -> object:
        return object()

    def capture(self, run: Callable[[], None], stream: Any, memory: object) -> Any:
        self.captured += 1
        self.free -= GRAPH_BYTES
        return _Graph(self, run)

    def free_bytes(self) -> int:
        return self.free

    def peak_bytes(self, run: Callable[[], None]) -> int:
        run()
        return self.peak

    def synchronize(self) -> None:
        self.num_synchronized += 1
        for stream in self._streams:
            stream.run_until(stream.position)
        self._held.clear()

    def readers_may_hold(self, uploads: RecordingStream, reader: RecordingStream) -> None:
        """reader has waited for uploads: it may read what was uploaded from now on."""
        if uploads is reader:
            return
        for address in self._uploaded.pop(uploads.name, []):
            self._held[address] = reader, reader.num_records

    def _check_unread(self, stream: RecordingStream, address: int) -> None:
        if address not in self._held:
            return
        reader, num_records = self._held[address]
        seen = stream.seen_records.get(reader.name, 0)
        assert seen > num_records, f"{stream.name} overwrites what {reader.name} may still read"

    def _is_pinned(self, tensor: torch.Tensor) -> bool:
        address = tensor.data_ptr()
        return any(0 <= address - one.data_ptr() < len(one) for one in self._host)


def _copy(destination: torch.Tensor, source: torch.Tensor) -> None:
    with torch.inference_mode():
        destination.copy_(source)


class _Graph:
    """Runs again what was captured, and compares what it touches with the first run."""

    def __init__(self, device: RecordingDevice, run: Callable[[], None]) -> None:
        self._device = device
        self._run = run
        self._captured = _Operations()
        with self._captured:
            run()

    def replay(self) -> None:
        self._device.num_replays += 1
        now = _Operations()
        with now:
            self._run()
        assert len(now.found) == len(self._captured.found), "a replay does other operations"
        for is_, was in zip(now.found, self._captured.found, strict=True):
            assert is_ == was, f"a replay does {is_}, captured was {was}"


class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]  # as torch has it
    """Each operation with shape, type and, where it existed before, address of its arguments."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: list[tuple[Any, ...]] = []
        self._made: list[torch.UntypedStorage] = []  # kept alive, so that addresses stay theirs
        self._made_at: set[int] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        seen = [self._seen(one) for one in _tensors((args, kwargs or {}))]
        self.found.append((str(func), *seen))
        out = func(*args, **(kwargs or {}))
        known = {one.untyped_storage().data_ptr() for one in _tensors((args, kwargs or {}))}
        for tensor in _tensors(out):
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in known:
                self._made.append(storage)
                self._made_at.add(storage.data_ptr())
        return out

    def _seen(self, tensor: torch.Tensor) -> tuple[Any, ...]:
        is_made = tensor.untyped_storage().data_ptr() in self._made_at
        address = None if is_made else tensor.data_ptr()
        return tuple(tensor.shape), tensor.dtype, address


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _tensors(one)
    elif isinstance(value, dict):
        for one in value.values():
            yield from _tensors(one)
