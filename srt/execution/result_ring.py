"""ResultRing: a step's results on their way back to the host, without the host waiting for them.

Two sets of pinned buffers take turns: with one step in flight, the results of a step are read after
the next one has been launched.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from .device import Device, Event, Stream
from .packed_arrays import HostArray

_NUM_SETS = 2
_LEAST_BYTES = 1 << 12
_ALIGNMENT_BYTES = 16


class ResultsToCome:
    """Arrays that a stream is copying to the host."""

    def __init__(self, host: dict[str, torch.Tensor], done: Event) -> None:
        self._host = host
        self._done = done
        self.is_read = False

    def read(self) -> dict[str, HostArray]:
        """Wait until they are here. Valid until the second upload after this one."""
        # The one place where a step waits for the device: its results are needed now.
        if not self._done.is_done():
            self._done.wait_on_host()
        self.is_read = True
        return {name: tensor.numpy() for name, tensor in self._host.items()}


class ResultRing:
    """Downloads in order, on the stream that computes the results."""

    def __init__(self, device: Device, stream: Stream) -> None:
        self._device = device
        self._stream = stream
        self._buffers = [torch.empty(0, dtype=torch.uint8) for _ in range(_NUM_SETS)]
        self._pending: list[ResultsToCome | None] = [None] * _NUM_SETS
        self._next = 0

    def download(self, tensors: Mapping[str, torch.Tensor]) -> ResultsToCome:
        """Enqueue copies of tensors to the host; to be called with the stream current."""
        place = self._next
        self._next = (place + 1) % _NUM_SETS
        pending = self._pending[place]
        assert pending is None or pending.is_read, "results were overwritten unread"
        sizes = {name: _padded(tensor.nbytes) for name, tensor in tensors.items()}
        if (num_bytes := sum(sizes.values())) > len(self._buffers[place]):
            size = max(_LEAST_BYTES, 1 << (num_bytes - 1).bit_length())
            self._buffers[place] = self._device.host_buffer(size)
        host: dict[str, torch.Tensor] = {}
        start = 0
        for name, tensor in tensors.items():
            part = self._buffers[place][start : start + tensor.nbytes]
            host[name] = part.view(tensor.dtype).view(tensor.shape)
            self._device.copy(host[name], tensor)
            start += sizes[name]
        results = ResultsToCome(host, self._stream.record())
        self._pending[place] = results
        return results


def _padded(num_bytes: int) -> int:
    return -(-num_bytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
