"""Tensors between guard zones: a write outside them is found, a read outside them shows.

The interpreter does not notice a wrong address. So every tensor a kernel gets stands in the middle
of a larger buffer. Outside an input the buffer holds NaN (a number far off for integers), which
spoils any result that uses it; around an output the zones must be unchanged after the launch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

_GUARD_ELEMENTS = 1024
_INTEGER_POISON = 2**30 - 7  # as a slot it points far outside every pool


@dataclass(frozen=True, slots=True)
class GuardedOutput:
    """tensor is the place a kernel writes to, filled with poison at first."""

    tensor: torch.Tensor
    buffer: torch.Tensor

    @staticmethod
    def empty(shape: tuple[int, ...], dtype: torch.dtype) -> GuardedOutput:
        """A contiguous output of that shape."""
        buffer = _poison(math.prod(shape) + 2 * _GUARD_ELEMENTS, dtype)
        return GuardedOutput(_middle(buffer, shape), buffer)

    def assert_guards_hold(self) -> None:
        """Fail if something was written outside tensor."""
        size = self.tensor.numel()
        untouched = _poison(_GUARD_ELEMENTS, self.buffer.dtype)
        before = self.buffer[:_GUARD_ELEMENTS]
        after = self.buffer[_GUARD_ELEMENTS + size :]
        assert same_bits(before, untouched), "written before the start of the tensor"
        assert same_bits(after, untouched), "written after the end of the tensor"


def guarded(values: torch.Tensor) -> torch.Tensor:
    """A contiguous copy of values with poison around it."""
    buffer = _poison(values.numel() + 2 * _GUARD_ELEMENTS, values.dtype)
    tensor = _middle(buffer, tuple(values.shape))
    tensor.copy_(values)
    return tensor


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether both hold the same bytes; NaN equals NaN, and 0.0 is not -0.0."""
    return torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


def _poison(size: int, dtype: torch.dtype) -> torch.Tensor:
    if dtype.is_floating_point:
        return torch.full((size,), math.nan, dtype=torch.float32).to(dtype)
    limit = torch.iinfo(dtype).max
    return torch.full((size,), min(limit, _INTEGER_POISON), dtype=dtype)


def _middle(buffer: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    size = math.prod(shape)
    return buffer[_GUARD_ELEMENTS : _GUARD_ELEMENTS + size].view(shape)
