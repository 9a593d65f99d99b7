"""Where an array's values lie, for numpy arrays and torch tensors alike; imports no torch.

numpy has no bfloat16: its bit patterns as uint16 stand for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

if TYPE_CHECKING:
    import torch

    Array: TypeAlias = np.ndarray[Any, Any] | torch.Tensor
else:
    Array: TypeAlias = Any


@dataclass(frozen=True, slots=True)
class ArrayView:
    """Address, dtype name and layout (strides in elements) of an array in host memory."""

    address: int
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def is_contiguous(self) -> bool:
        """Whether the values lie side by side in row-major order."""
        expected = 1
        for size, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if size != 1 and stride != expected:
                return 0 in self.shape
            expected *= size
        return True


def view_of(array: Array) -> ArrayView:
    """Describe array, which must outlive every use of the address."""
    if isinstance(array, np.ndarray):
        itemsize = array.itemsize
        return ArrayView(
            array.__array_interface__["data"][0],
            array.dtype.name,
            array.shape,
            tuple(stride // itemsize for stride in array.strides),
        )
    if array.device.type != "cpu":
        raise TypeError(f"the CPU engine was given a tensor on {array.device}")
    dtype = str(array.dtype).removeprefix("torch.")
    return ArrayView(array.data_ptr(), dtype, tuple(array.shape), array.stride())


def contiguous(array: Array) -> Array:
    """Return array, or a contiguous copy of it."""
    if isinstance(array, np.ndarray):
        return np.ascontiguousarray(array)
    return array.contiguous()
