"""WeightUpload: weights from a file straight to the device, through two small pinned buffers.

While one buffer is on its way the next part is read into the other, so the host never holds more
than those two.
"""

from __future__ import annotations

import torch

from .device import Device, Event, Stream

_BUFFER_BYTES = 32 << 20


class WeightUpload:
    """A WeightCopier (loading.weights) for a device."""

    def __init__(self, device: Device, stream: Stream, buffer_bytes: int = _BUFFER_BYTES) -> None:
        self._device = device
        self._stream = stream
        self._buffers = [device.host_buffer(buffer_bytes) for _ in range(2)]
        self._sent: list[Event | None] = [None, None]
        self._next = 0

    def host_buffer(self) -> torch.Tensor:
        """uint8 memory on the host that may be written until send() is called."""
        sent = self._sent[self._next]
        if sent is not None:
            sent.wait_on_host()
        return self._buffers[self._next]

    def send(self, destination: torch.Tensor, source: torch.Tensor) -> None:
        """Copy source, the beginning of host_buffer() in any type, to destination, both [N]."""
        with self._device.running_on(self._stream):
            if source.dtype == destination.dtype:
                self._device.copy(destination, source)
            else:
                # Converted there: torch would convert a host tensor on the host.
                there = torch.empty_like(source, device=destination.device)
                self._device.copy(there, source)
                self._device.copy(destination, there)
        self._sent[self._next] = self._stream.record()
        self._next = 1 - self._next

    def finish(self) -> None:
        """Wait until all that was sent has arrived."""
        self._device.synchronize()
