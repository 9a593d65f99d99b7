"""StagingRing: a step's arrays on their way to the device, beside the step that runs.

Two sets of buffers take turns. The host writes a set's pinned half once its last copy is done; the
copy stream overwrites its device half once whoever read that has said so. Neither waits in the
steady state: both happened a whole step ago.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from .device import Device, Event, Stream
from .packed_arrays import HostArray, PackedLayout

_NUM_SETS = 2
_LEAST_BYTES = 1 << 16


class _BufferSet:
    def __init__(self) -> None:
        self.host = torch.empty(0, dtype=torch.uint8)
        self.device = torch.empty(0, dtype=torch.uint8)
        self.uploaded: Event | None = None
        self.released: Event | None = None
        self.is_open = False  # uploaded and not yet released


class StagedArrays:
    """Uploaded arrays by name, as tensors on the device; whole: the bytes of them all.

    A stream that reads them waits for `uploaded` first, and calls release() after its last read.
    """

    def __init__(
        self, tensors: dict[str, torch.Tensor], whole: torch.Tensor, buffers: _BufferSet
    ) -> None:
        assert buffers.uploaded is not None
        self.tensors = tensors
        self.whole = whole
        self.uploaded = buffers.uploaded
        self._buffers = buffers

    def release(self, last_read: Event) -> None:
        """Let the buffers be used again for what comes after last_read."""
        self._buffers.released = last_read
        self._buffers.is_open = False


class StagingRing:
    """Uploads in order, on a stream of its own; at most two uploads are open at a time."""

    def __init__(self, device: Device, copy_stream: Stream) -> None:
        self._device = device
        self._copy_stream = copy_stream
        self._sets = [_BufferSet() for _ in range(_NUM_SETS)]
        self._next = 0

    def upload(self, arrays: Mapping[str, HostArray]) -> StagedArrays:
        """Enqueue the copy of arrays to the device; they are read before this returns."""
        buffers = self._sets[self._next]
        self._next = (self._next + 1) % _NUM_SETS
        assert not buffers.is_open, "a step's staging buffers were not released"
        layout = PackedLayout(arrays)
        if buffers.uploaded is not None and not buffers.uploaded.is_done():
            buffers.uploaded.wait_on_host()
        if layout.num_bytes > len(buffers.host):
            self._grow(buffers, layout.num_bytes)
        layout.fill(buffers.host.numpy())
        if buffers.released is not None:
            self._copy_stream.wait_for(buffers.released)
        whole = buffers.device[: layout.num_bytes]
        with self._device.running_on(self._copy_stream):
            self._device.copy(whole, buffers.host[: layout.num_bytes])
        buffers.uploaded = self._copy_stream.record()
        buffers.is_open = True
        return StagedArrays(layout.views(buffers.device), whole, buffers)

    def _grow(self, buffers: _BufferSet, num_bytes: int) -> None:
        # Seldom: sizes double. The old halves may not go while a stream still uses them.
        self._device.synchronize()
        size = max(_LEAST_BYTES, 1 << (num_bytes - 1).bit_length())
        device_half = torch.empty(size, dtype=torch.uint8, device=self._device.torch_device)
        buffers.host, buffers.device = self._device.host_buffer(size), device_half


class ForwardUploads:
    """Arrays that the forward pass finds out it needs while it is being launched.

    Those of the call before may be overwritten once all that was enqueued until now has run.
    """

    def __init__(self, device: Device, copy_stream: Stream, forward_stream: Stream) -> None:
        self._ring = StagingRing(device, copy_stream)
        self._forward_stream = forward_stream
        self._open: StagedArrays | None = None

    def __call__(self, arrays: Mapping[str, HostArray]) -> dict[str, torch.Tensor]:
        """arrays on the device, for what is enqueued on the forward stream from now on."""
        if self._open is not None:
            self._open.release(self._forward_stream.record())
        self._open = self._ring.upload(arrays)
        self._forward_stream.wait_for(self._open.uploaded)
        return self._open.tensors
