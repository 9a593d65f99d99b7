"""Several small arrays in one buffer, so that one copy carries them all to the device.

Each array starts at a multiple of 16 bytes: kernels load whole vectors, and torch views need the
alignment of their type.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

_ALIGNMENT_BYTES = 16

HostArray: TypeAlias = npt.NDArray[Any]


class PackedLayout:
    """Where each array of a given shape and type stands; num_bytes is the length of the buffer."""

    def __init__(self, arrays: Mapping[str, HostArray]) -> None:
        self._places: dict[str, tuple[int, HostArray]] = {}
        end = 0
        for name, array in arrays.items():
            self._places[name] = (end, array)
            end += -(-array.nbytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
        self.num_bytes = end

    def fill(self, buffer: npt.NDArray[np.uint8]) -> None:
        """Write the arrays into buffer, [num_bytes] or longer."""
        for start, array in self._places.values():
            target = buffer[start : start + array.nbytes].view(array.dtype)
            target[:] = array.reshape(-1)

    def views(self, buffer: torch.Tensor) -> dict[str, torch.Tensor]:
        """The arrays as tensors in buffer, [num_bytes] or longer, uint8."""
        return {
            name: buffer[start : start + array.nbytes]
            .view(_TORCH_DTYPES[array.dtype])
            .view(array.shape)
            for name, (start, array) in self._places.items()
        }


_TORCH_DTYPES: Mapping[np.dtype[Any], torch.dtype] = {
    np.dtype(np.int64): torch.int64,
    np.dtype(np.int32): torch.int32,
    np.dtype(np.float32): torch.float32,
}
